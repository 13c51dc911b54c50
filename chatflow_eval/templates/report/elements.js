// Elements and words: whatever is said of a run goes into the page as text, here and nowhere else.

const byId = (id) => document.getElementById(id);
const wide = matchMedia("(min-width: 60rem)"); // The list and a trial stand side by side; the same in report.css.

// Characters that turn a line around, or end one, are shown as escapes.
const UNPRINTABLE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const printable = (text) =>
  String(text).replace(UNPRINTABLE, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));

const nothing = (value) => value === undefined || value === null || value === false || value === "";

/** An element; of its attributes functions are listeners, and what is nothing is left out, as among its children. */
const el = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value === "" || !nothing(value)) node.setAttribute(key, value === true ? "" : printable(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child instanceof Node) node.append(child);
    else if (!nothing(child)) node.append(printable(child));
  }
  return node;
};
const button = (label, click, attributes) => el("button", { type: "button", click, ...attributes }, label);
const hidden = (text, attributes) => el("span", { class: "vh", ...attributes }, text);
const words = (text) => el("div", { class: "words", dir: "auto" }, text);
const code = (text) => el("code", { dir: "auto" }, text);

const SYMBOLS = { passed: "✓", failed: "✗", errored: "!", skipped: "○", yardstick: "≈" };
const ARROW = " → ";
const amount = (number) => number.toLocaleString("en");
const counted = (number, noun) => `${amount(number)} ${noun}${number === 1 ? "" : "s"}`;
const seconds = (value) =>
  value < 0.001 ? "< 1 ms" : value < 0.1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(2)} s`;
const kindName = (kind) => kind.replaceAll("_", " ");

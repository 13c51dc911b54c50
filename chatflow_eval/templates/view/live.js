"use strict";
(() => {
  const standing = document.getElementById("standing");
  const link = document.getElementById("link");
  let source;
  let ended = false;

  function follow() {
    source?.close();
    if (ended || document.hidden) return; // a browser keeps few connections to one server, and others wait for them
    source = new EventSource(`${location.pathname.replace(/\/$/, "")}/events`);
    source.addEventListener("open", () => (link.textContent = ""));
    source.addEventListener("error", () => (link.textContent = "The server does not answer; asking again."));
    source.addEventListener("standing", ({ data }) => {
      standing.innerHTML = data; // escaped by the server, and the page's policy runs no script but this one
      document.title = `${standing.firstElementChild.dataset.title} - chatflow-eval`;
    });
    source.addEventListener("over", () => {
      source.close();
      ended = true;
      link.textContent = "The run has ended.";
    });
  }

  document.addEventListener("visibilitychange", follow);
  follow();
})();

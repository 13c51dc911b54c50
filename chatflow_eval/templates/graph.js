// Draws the routing graphs of `#graph-data` with dagre: each the way that fits its place best. Links do the rest.
(() => {
  "use strict";
  const source = document.getElementById("graph-data");
  const frame = document.getElementById("graph-drawing");
  if (!source || !frame || typeof dagre === "undefined") return;
  const graphs = JSON.parse(source.textContent);
  const place = frame.querySelector(".swarms");
  const SVG = "http://www.w3.org/2000/svg";
  const NODE = { height: 38, most: 150, padding: 12 };
  const SMALLEST = 0.62; // Below this scale letters get too small: the drawing scrolls instead.

  const measure = (() => {
    const context = document.createElement("canvas").getContext("2d");
    const family = getComputedStyle(document.body).fontFamily;
    return (text, size, weight = 400) => {
      context.font = `${weight} ${size}px ${family}`;
      return context.measureText(text).width;
    };
  })();

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  };

  /** The text, or both its ends, as names often differ in either. */
  const fit = (text, size, weight, most) => {
    if (measure(text, size, weight) <= most) return text;
    const signs = [...text];
    const kept = (count) =>
      `${signs.slice(0, Math.ceil(count / 2)).join("")}…${signs.slice(signs.length - Math.floor(count / 2)).join("")}`;
    let count = Math.min(signs.length - 1, 60);
    while (count > 1 && measure(kept(count), size, weight) > most) count -= 1;
    return kept(count);
  };

  /** The names as they fit; those that would look alike from where they differ. */
  function shortened(names, size, weight, most) {
    const texts = names.map((name) => fit(name, size, weight, most));
    const alike = new Map();
    texts.forEach((text, index) => alike.set(text, [...(alike.get(text) ?? []), index]));
    for (const group of alike.values()) {
      const [one, ...others] = [...new Set(group.map((index) => names[index]))];
      const signs = [...one];
      const shared = others.map((other) => signs.findIndex((sign, place) => sign !== [...other][place]));
      const start = others.length ? Math.min(...shared.map((place) => (place < 0 ? signs.length : place))) : 0;
      if (start)
        for (const index of group)
          texts[index] = fit(`…${[...names[index]].slice(start).join("")}`, size, weight, most);
    }
    return texts;
  }

  const times = (count) => (count === 1 ? "1 visit" : `${count.toLocaleString("en")} visits`);
  const widthOf = (edge) => 1.5 + 6.5 * edge.share;

  /** What stands at an edge; where there are many, the dots alone say that one is never used. */
  const words = (edge, graph) => {
    if (edge.state === "idle" && graph.edges.length > 12) return [];
    return edge.call ? [["⇒", "muted"], ...edge.label] : edge.label;
  };

  /** The graph laid out by dagre; with a `hub`, all others in one column beside it, to be joined by arcs. */
  function laid(graph, across, most, hub, room) {
    const layout = new dagre.graphlib.Graph({ multigraph: true });
    const ranksep = across ? 64 : 60;
    layout.setGraph({ rankdir: across ? "LR" : "TB", nodesep: 20, edgesep: 12, ranksep, marginx: 4, marginy: 4 });
    layout.setDefaultEdgeLabel(() => ({}));
    const sides = graph.nodes.map(() => 0);
    for (const edge of graph.edges) for (const node of new Set([edge.from, edge.to])) sides[node] += widthOf(edge) + 4;
    const names = graph.nodes.map((node) => node.name);
    const texts = shortened(names, 13, 600, most);
    graph.nodes.forEach((node, index) => {
      const text = texts[index];
      const under = node.visits ? times(node.visits) : "never reached";
      const width = Math.max(measure(text, 13, 600), measure(under, 11)) + 2 * NODE.padding;
      const side = (node.start ? 1 : 0.6) * sides[index] + 10; // Room for the lines that meet there.
      layout.setNode(String(index), {
        width: Math.ceil(across ? width : Math.max(width, side)),
        height: Math.ceil(across ? Math.max(NODE.height, side) : NODE.height),
        text,
        under,
      });
    });
    if (hub !== null) {
      graph.nodes.forEach((_, index) => {
        if (index !== hub) layout.setEdge(String(hub), String(index), { width: 1, height: 1 }, `column ${index}`);
      });
    }
    graph.edges.forEach((edge, index) => {
      if (isArc(edge, hub)) return;
      const text = words(edge, graph)
        .map(([part]) => part)
        .join(" ");
      const label = { width: text ? Math.ceil(measure(text, 12, 600)) + 8 : 1, height: text ? 18 : 4, labelpos: "c" };
      if (edge.from === edge.to) label.labelpos = "r";
      layout.setEdge(String(edge.from), String(edge.to), label, String(index));
    });
    dagre.layout(layout);
    return hub === null ? { layout, arcs: new Map() } : arched(graph, layout, hub, room / SMALLEST);
  }

  const isArc = (edge, hub) => hub !== null && edge.from !== hub && edge.to !== hub && edge.from !== edge.to;

  /** Edges within the column as arcs to its right, the short ones inside, none over another's label. */
  function arched(graph, layout, hub, most) {
    const node = (index) => layout.node(String(index));
    const others = graph.nodes.map((_, index) => index).filter((index) => index !== hub);
    const border = Math.max(...others.map((index) => node(index).x + node(index).width / 2));
    const spans = graph.edges
      .map((edge, index) => ({ edge, index, low: node(edge.from).y, high: node(edge.to).y }))
      .filter(({ edge }) => isArc(edge, hub))
      .sort((one, other) => Math.abs(one.high - one.low) - Math.abs(other.high - other.low));
    const lanes = [];
    for (const span of spans) {
      const text = words(span.edge, graph)
        .map(([part]) => part)
        .join(" ");
      span.width = text ? Math.ceil(measure(text, 12, 600)) + 8 : 1;
      const [top, bottom] = [Math.min(span.low, span.high) - 4, Math.max(span.low, span.high) + 4];
      span.lane = lanes.findIndex((lane) => lane.taken.every(([from, to]) => bottom < from || top > to));
      if (span.lane < 0) span.lane = lanes.push({ taken: [], width: 6 }) - 1;
      lanes[span.lane].taken.push([top, bottom]);
      lanes[span.lane].width = Math.max(lanes[span.lane].width, span.width);
    }
    const gap = 8;
    let right = border + 22 + lanes.reduce((sum, lane) => sum + lane.width + gap, 0);
    const tight = right > most; // Then the arcs are drawn closer, without what stands at them.
    const step = Math.min(14, Math.max(most - border - 30, 0) / (lanes.length + 1));
    let at = border + 22;
    for (const [index, lane] of lanes.entries()) {
      lane.x = tight ? border + 8 + step * (index + 1) : at + lane.width / 2;
      at += lane.width + gap;
    }
    if (tight) right = border + 16 + step * (lanes.length + 1);
    const arcs = new Map();
    for (const { edge, index, low, high, width, lane } of spans) {
      const label = { x: lanes[lane].x, y: (low + high) / 2, width, bare: tight };
      const ends = [edge.from, edge.to].map((name) => ({ x: node(name).x + node(name).width / 2, y: node(name).y }));
      arcs.set(index, { ...label, points: [ends[0], label, ends[1]] });
    }
    if (lanes.length) layout.graph().width = Math.max(layout.graph().width, right + 4);
    return { layout, arcs };
  }

  /** Across, where lines from one agent to many keep apart best; otherwise as needs much less shrinking. */
  function best(graph, room) {
    const most = room < 500 ? 112 : NODE.most;
    const choice = (across, hub) => {
      const { layout, arcs } = laid(graph, across, most, hub, room);
      const { width, height } = layout.graph();
      return { layout, arcs, across, width, height, scale: Math.min(1, room / width) };
    };
    const [across, down] = [choice(true, null), choice(false, null)];
    const chosen = across.scale > 0.8 * down.scale ? across : down;
    const hub = graph.nodes.findIndex((node) => node.start);
    if (chosen.scale > 0.7 || hub < 0) return chosen;
    const column = choice(true, hub);
    return column.scale > chosen.scale ? column : chosen;
  }

  /** The points of every edge, its ends evenly on the sides of its agents instead of all at one spot. */
  function routes(graph, { layout, arcs, across }) {
    const [along, aside, length, breadth] = across ? ["x", "y", "width", "height"] : ["y", "x", "height", "width"];
    const ends = new Map();
    const halves = new Map(); // Where agents or labels stand side by side, lines run straight between them.
    const widen = (spot) => {
      const key = Math.round(spot[along]);
      halves.set(key, Math.max(halves.get(key) ?? 0, spot[length] / 2));
    };
    layout.nodes().forEach((name) => widen(layout.node(name)));
    layout.edges().forEach((name) => widen(layout.edge(name)));
    const port = (name, after, point, next, edge) => {
      const key = `${name} ${after}`;
      if (!ends.has(key)) ends.set(key, []);
      ends.get(key).push({ point, node: layout.node(String(name)), beside: next[aside], room: widthOf(edge) + 4 });
    };
    const found = graph.edges.map((edge, index) => {
      const arc = arcs.get(index);
      if (arc) {
        for (const [name, end] of [
          [edge.from, 0],
          [edge.to, 2],
        ])
          port(name, true, arc.points[end], arc.points[2 - end], edge);
        return arc.points;
      }
      const laidOut = layout.edge(String(edge.from), String(edge.to), String(index));
      if (edge.from === edge.to) return laidOut.points;
      const points = laidOut.points.flatMap((point, place) => {
        if (place === 0 || place === laidOut.points.length - 1) return [{ ...point }];
        const forwards = Math.sign(laidOut.points[place + 1][along] - laidOut.points[place - 1][along]);
        const half = forwards * (halves.get(Math.round(point[along])) ?? 0);
        return [-half, half].map((by) => ({ ...point, [along]: point[along] + by }));
      });
      for (const [name, end, next] of [
        [edge.from, 0, 1],
        [edge.to, points.length - 1, points.length - 2],
      ]) {
        const node = layout.node(String(name));
        const after = points[next][along] > node[along];
        points[end][along] = node[along] + (after ? 0.5 : -0.5) * node[length];
        port(name, after, points[end], points[next], edge);
      }
      return points;
    });
    for (const side of ends.values()) {
      side.sort((one, other) => one.beside - other.beside);
      const { node } = side[0];
      const wanted = side.reduce((sum, end) => sum + end.room, 0);
      const squeeze = Math.min(1.6, (node[breadth] - 8) / wanted);
      let at = node[aside] - (wanted * squeeze) / 2;
      for (const end of side) {
        end.point[aside] = at + (end.room * squeeze) / 2;
        at += end.room * squeeze;
      }
    }
    return found;
  }

  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;

  /** A path through all points, `short` pixels before the last one, and where it points there. */
  function curve(points, short, across, shape) {
    const last = points[points.length - 1];
    const before = points[points.length - 2];
    const length = Math.hypot(last.x - before.x, last.y - before.y) || 1;
    const heading =
      shape === "loop"
        ? { x: (last.x - before.x) / length, y: (last.y - before.y) / length }
        : across
          ? { x: Math.sign(last.x - before.x) || 1, y: 0 }
          : { x: 0, y: Math.sign(last.y - before.y) || 1 };
    const end = { x: last.x - short * heading.x, y: last.y - short * heading.y };
    const kept = [...points.slice(0, -1), end];
    if (shape === "loop") return { path: `M${kept.map(at).join("L")}`, last, heading };
    if (shape === "arc") {
      // Both of a curve's controls at a third more than its height take it just there.
      const [from, top, to] = kept;
      const out = Math.max(from.x, to.x) + ((top.x - Math.max(from.x, to.x)) * 4) / 3;
      return { path: `M${at(from)}C${at({ x: out, y: from.y })} ${at({ x: out, y: to.y })} ${at(to)}`, last, heading };
    }
    let path = `M${at(kept[0])}`;
    for (let index = 1; index < kept.length; index += 1) {
      const [from, to] = [kept[index - 1], kept[index]];
      const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
      const bends = across
        ? [
            { x: middle.x, y: from.y },
            { x: middle.x, y: to.y },
          ]
        : [
            { x: from.x, y: middle.y },
            { x: to.x, y: middle.y },
          ];
      path += `C${bends.map(at).join(" ")} ${at(to)}`;
    }
    return { path, last, heading };
  }

  function arrow(last, heading, width) {
    const length = 7 + width;
    const half = 3 + width * 0.75;
    const base = { x: last.x - length * heading.x, y: last.y - length * heading.y };
    const corners = [
      [last.x, last.y],
      [base.x - half * heading.y, base.y + half * heading.x],
      [base.x + half * heading.y, base.y - half * heading.x],
    ];
    return corners.map((corner) => corner.map((value) => value.toFixed(1)).join(",")).join(" ");
  }

  function link(href, label, ...children) {
    const inside = [element("title", {}, label), ...children];
    return href ? element("a", { href, "aria-label": label }, ...inside) : element("g", {}, ...inside);
  }

  function drawnEdge(edge, label, points, said, across, shape) {
    const width = widthOf(edge);
    const { path, last, heading } = curve(points, 6 + width, across, shape);
    const box = { x: label.x - label.width / 2, y: label.y - 9, width: label.width, height: 18, rx: 3 };
    const text = element("text", { class: "count", x: label.x, y: label.y + 4, "text-anchor": "middle" });
    said.forEach(([part, style], index) =>
      text.append(element("tspan", { class: style || null }, index ? ` ${part}` : part)),
    );
    const drawn = link(
      edge.href,
      edge.title,
      element("path", { class: "reach", d: path }),
      element("path", { class: `line ${edge.state}`, d: path, "stroke-width": edge.call ? width + 2.5 : width }),
      edge.call ? element("path", { class: "hollow", d: path, "stroke-width": Math.max(width - 0.5, 1.2) }) : null,
      element("polygon", { class: `tip ${edge.state}`, points: arrow(last, heading, width) }),
      said.length ? element("rect", { class: "behind", ...box }) : null,
      said.length ? text : null,
    );
    drawn.classList.add("edge", edge.call ? "call" : "transfer");
    return drawn;
  }

  function drawnNode(node, spot) {
    const [x, y] = [spot.x - spot.width / 2, spot.y - spot.height / 2];
    const kind = ["box", node.start ? "start" : "", node.visits ? "" : "unreached"].filter(Boolean).join(" ");
    const told = [
      node.name,
      node.start ? ", where conversations start" : "",
      `: ${node.visits ? times(node.visits) : "never reached"}`,
      node.declared ? "" : ", not declared",
    ].join("");
    const drawn = link(
      node.href,
      told,
      element("rect", { class: kind, x, y, width: spot.width, height: spot.height, rx: 7 }),
      node.start ? element("path", { class: "from", d: `M${x + 3.5} ${y + 7}v${spot.height - 14}` }) : null,
      element("text", { class: "name", x: spot.x, y: spot.y - 2, "text-anchor": "middle" }, spot.text),
      element("text", { class: "under", x: spot.x, y: spot.y + 12, "text-anchor": "middle" }, spot.under),
    );
    drawn.classList.add("node");
    return drawn;
  }

  function figure(graph, room) {
    const plan = best(graph, room);
    const { layout, arcs, across, width, height, scale } = plan;
    const points = routes(graph, plan);
    const shown = Math.max(scale, SMALLEST);
    const drawing = element("svg", {
      viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`,
      width: Math.ceil(width * shown),
      height: Math.ceil(height * shown),
      role: "group",
      "aria-label": `Routing graph${graph.name ? ` of ${graph.name}` : ""}; the table below says the same`,
    });
    const lines = graph.edges.map((edge, index) => {
      const label = arcs.get(index) ?? layout.edge(String(edge.from), String(edge.to), String(index));
      const shape = arcs.has(index) ? "arc" : edge.from === edge.to ? "loop" : "line";
      return {
        edge,
        drawn: drawnEdge(edge, label, points[index], label.bare ? [] : words(edge, graph), across, shape),
      };
    });
    lines.sort((one, other) => (other.edge.state === "idle") - (one.edge.state === "idle")); // Those under the others.
    drawing.append(...lines.map((line) => line.drawn));
    graph.nodes.forEach((node, index) => drawing.append(drawnNode(node, layout.node(String(index)))));
    const made = document.createElement("figure");
    if (graph.name) {
      const caption = document.createElement("figcaption");
      caption.dir = "auto";
      caption.textContent = graph.name;
      made.append(caption);
    }
    made.append(drawing);
    if ([...arcs.values()].some((arc) => arc.bare)) {
      const note = document.createElement("p");
      note.textContent = "There is no room for the counts of the arcs: they are in the table below.";
      made.append(note);
    }
    return made;
  }

  let drawnFor = 0;
  function draw() {
    const room = place.clientWidth - (place.clientWidth < 600 ? 18 : 34); // A figure has its padding and border.
    if (room <= 0 || room === drawnFor) return;
    drawnFor = room;
    place.replaceChildren(...graphs.map((graph) => figure(graph, room)));
  }

  if (!graphs.some((graph) => graph.nodes.length)) return;
  frame.hidden = false;
  draw();
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(place);
})();

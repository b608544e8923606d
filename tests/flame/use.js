// Uses the picture that it was put into, by its own buttons, and writes down what it sees.
window.addEventListener("load", () => setTimeout(() => {
    let seen = {};
    try {
        seen = use_picture();
    } catch (error) {
        seen.error = String(error.stack || error);
    }
    document.getElementById("seen").textContent = encodeURIComponent(JSON.stringify(seen));
}, 100));

function use_picture() {
    const click = (node) => node.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
    const boxes = [...document.getElementById("frames").children].map((g) => {
        const rect = g.querySelector("rect");
        const title = g.querySelector("title").textContent;
        return {
            g, rect,
            name: title.replace(/ \([0-9,]+ ns, [^(]*\)$/, ""),
            x: Number(rect.getAttribute("fg:x")),
            w: Number(rect.getAttribute("fg:w")),
            y: Number(rect.getAttribute("y")),
        };
    });
    const inside = (a, b) => a.x >= b.x && a.x + a.w <= b.x + b.w;
    const root = boxes.reduce((a, b) => (b.y > a.y ? b : a));
    const levels = [...new Set(boxes.map((b) => b.y))].sort((a, b) => b - a);

    // Each box stands on the one below that it lies within.
    for (const box of boxes) box.own = box.w;
    for (const [i, y] of levels.entries()) {
        for (const box of boxes.filter((b) => b.y === y)) {
            if (i === 0) { box.path = ""; continue; }
            const parents = boxes.filter((b) => b.y === levels[i - 1] && inside(box, b));
            if (parents.length !== 1) throw new Error(`${box.name} stands on ${parents.length} boxes`);
            box.parent = parents[0];
            box.parent.own -= box.w;
            box.path = i === 1 ? box.name : box.parent.path + ";" + box.name;
        }
    }

    // Search, by the button. The outermost marked boxes are the time found.
    const fill = (b) => b.rect.getAttribute("fill");
    const before = boxes.map(fill);
    window.prompt = () => "SEARCH";
    click(document.getElementById("search"));
    const marked = boxes.filter((b, i) => fill(b) !== before[i]);
    const under_marked = (b) => b.parent !== undefined && (marked.includes(b.parent) || under_marked(b.parent));
    const searched = marked.filter((b) => !under_marked(b)).reduce((sum, b) => sum + b.w, 0);
    const matched_text = document.getElementById("matched").textContent;
    click(document.getElementById("search"));
    const marks_left = boxes.filter((b, i) => fill(b) !== before[i]).length;

    // Zoom into each box at the base, and out.
    const place = (b) => b.rect.getAttribute("x") + " " + b.rect.getAttribute("width") + " " + b.g.getAttribute("class");
    const zooms = boxes.filter((b) => b.parent === root).map((box) => {
        const resting = boxes.map((b) => place(b).replace("null", ""));
        click(box.rect);
        const neighbours = boxes.filter((b) => b !== root && !inside(b, box));
        const fills = parseFloat(box.rect.getAttribute("width")) === 100
            && neighbours.every((b) => b.g.classList.contains("hide"));
        click(document.getElementById("unzoom"));
        const resets = boxes.every((b, i) => place(b).replace("null", "") === resting[i]);
        return {name: box.name, time: box.w, fills, resets};
    });

    // Entries of the legend: a box, its text, a box, its text.
    const legend = [...document.getElementById("legend").children].map((e) => e.getBBox());
    const width = document.documentElement.getBoundingClientRect().width;
    const legend_overlaps = legend.filter((box, i) => {
        const next = i + 1 < legend.length ? legend[i + 1].x : width;
        return box.x + box.width > next;
    }).length + (legend.length < 4 ? 1 : 0);

    return {
        total: root.w,
        stacks: boxes.filter((b) => b.own !== 0).map((b) => [b.path, b.own]),
        searched, matched_text, marks_left, zooms, legend_overlaps,
        names: boxes.map((b) => b.name),
    };
}

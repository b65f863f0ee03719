const page = document.body;
let on = null;
const point = number => {
  if (number === on) return;
  for (const mark of page.querySelectorAll(".on")) mark.classList.remove("on");
  on = number;
  page.classList.toggle("pointing", on !== null);
  if (on === null) return;
  for (const mark of page.querySelectorAll(`[data-trial="${on}"]`)) {
    mark.classList.add("on");
    if (mark.tagName === "path") mark.parentNode.append(mark);
  }
};
page.addEventListener("pointerover", event => {
  const mark = event.target.closest("[data-trial]");
  point(mark ? mark.dataset.trial : null);
});
for (const path of page.querySelectorAll("path[data-trial]")) {
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  const row = page.querySelector(`tr[data-trial="${path.dataset.trial}"]`);
  const heads = row ? row.closest("table").tHead.rows[0].cells : [];
  const values = row ? [...row.cells].map(cell => [heads[cell.cellIndex].textContent, cell.textContent]) : [];
  title.textContent = values.filter(pair => pair[1]).map(pair => pair.join(": ")).join("\n");
  path.append(title);
}
for (const head of page.querySelectorAll(".all th")) head.addEventListener("click", () => {
  const rows = [...head.closest("table").tBodies[0].rows], up = head.dataset.up === "1" ? -1 : 1;
  for (const other of head.parentNode.cells) delete other.dataset.up;
  head.dataset.up = up;
  const key = row => row.cells[head.cellIndex].textContent;
  rows.sort((a, b) => {
    const x = key(a), y = key(b);
    if (!x || !y) return x ? -1 : y ? 1 : 0;
    return up * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
  });
  head.closest("table").tBodies[0].append(...rows);
});

for (const plot of document.querySelectorAll(".plot")) {
  const curves = JSON.parse(plot.querySelector("script").textContent);
  const cursor = plot.querySelector(".cursor"), tip = plot.querySelector(".tip");
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (low < high) { const mid = (low + high) >> 1; if (points[mid][2] < x) low = mid + 1; else high = mid; }
    return low > 0 && x - points[low - 1][2] < points[low][2] - x ? points[low - 1] : points[low];
  };
  const show = event => {
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    const found = curves.filter(c => c.points.length).map(c => [c.label, nearest(c.points, x)]);
    if (!found.length) return;
    const at = found.reduce((a, b) => Math.abs(b[1][2] - x) < Math.abs(a[1][2] - x) ? b : a)[1];
    tip.replaceChildren();
    const line = text => { tip.append(document.createElement("div")); tip.lastChild.textContent = text; };
    line("step " + at[0]);
    for (const [label, point] of found) if (point[0] === at[0]) line(label + "  " + point[1]);
    cursor.style.display = tip.style.display = "block";
    cursor.style.left = 100 * at[2] + "%";
    const left = at[2] * box.width;
    tip.style.left = (left < box.width / 2 ? left + 10 : left - 10 - tip.offsetWidth) + "px";
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", () => { cursor.style.display = tip.style.display = "none"; });
}

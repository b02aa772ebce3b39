"""The cascade `auto` against plain mixed-integer programs on every point of the same network, in one run.

Both decide the same points of a network trained against Kolter and Wong's bound (wk17a, or any other checkpoint). The baseline
gives every point to `mip` with HiGHS (bounds by CROWN, no attack, no bound before it), as far as its share of time allows.

    python benchmarks/bench_complete.py MODEL [--data mnist --eps 0.1 --points 200 --limit 120 --plot FILE.svg]

With `--plot` the seconds of every point are drawn over its number of unstable units.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

import relucert as rc
from relucert.experiments.others import published

FLOOR = 5.0


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("model", type=Path)
    options.add_argument("--data", default="mnist")
    options.add_argument("--eps", type=float, default=0.1)
    options.add_argument("--points", type=int, default=200)
    options.add_argument("--limit", type=float, default=120.0)
    options.add_argument("--plot", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    if not given.model.exists():
        print(f"complete: skipped, for want of {given.model}")
        return
    net = (rc.load(given.model) if given.model.is_dir() else published(given.model)).double()
    data = rc.dataset(given.data)
    x, y = data.x_test[: given.points].double(), data.y_test[: given.points]
    ball = rc.Ball(math.inf, given.eps)
    found, seconds = {}, {}
    for name, method in (("auto", rc.Auto()), ("mip", rc.MIP())):
        started = time.perf_counter()
        found[name] = rc.certify(net, x, y, ball, method, timeout=given.limit)
        seconds[name] = time.perf_counter() - started
        counts = {str(verdict): found[name].verdict.count(verdict) for verdict in dict.fromkeys(found[name].verdict)}
        print(f"  {name}: {seconds[name]:.1f} s, {counts}", flush=True)
    decided = {rc.Verdict.ROBUST, rc.Verdict.VULNERABLE}
    for i, (one, other) in enumerate(zip(found["auto"].verdict, found["mip"].verdict, strict=True)):
        assert one == other or not {one, other} <= decided, f"point {i}: auto says {one}, mip says {other}"
    print(
        f"{given.model}, {len(x)} points, l_inf {given.eps:g}: mip {seconds['mip']:.1f} s, auto {seconds['auto']:.1f} s, "
        f"{seconds['mip'] / seconds['auto']:.1f} times faster (floor {FLOOR:g})"
    )
    if given.plot is not None:
        counts = [unit.flatten(1).sum(1) for unit in rc.bounds(net, x, ball, "crown").unstable().values()]
        unstable = torch.stack(counts).sum(0).tolist()
        times = {name: one.seconds.tolist() for name, one in found.items()}
        given.plot.write_text(scatter(unstable, times, "unstable units (CROWN)", "seconds"))


def scatter(across: list[int], up: dict[str, list[float]], horizontal: str, vertical: str) -> str:
    """A drawing of points, one colour for each name, with a logarithmic vertical axis."""
    width, height, edge = 640, 420, 60
    colours = dict(zip(up, ("#1f77b4", "#d62728"), strict=True))
    values = [max(value, 1e-4) for series in up.values() for value in series]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    most = max(1, *across)

    def place(count: float, seconds: float) -> tuple[float, float]:
        share = (math.log10(max(seconds, 1e-4)) - low) / max(1, high - low)
        return edge + (width - 2 * edge) * count / most, height - edge - (height - 2 * edge) * share

    marks = [
        f'<circle cx="{place(a, b)[0]:.1f}" cy="{place(a, b)[1]:.1f}" r="3" fill="{colours[name]}" fill-opacity="0.6"/>'
        for name, series in up.items()
        for a, b in zip(across, series, strict=True)
    ]
    for power in range(low, high + 1):
        y = place(0, 10.0**power)[1]
        marks.append(f'<line x1="{edge}" x2="{width - edge}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        marks.append(f'<text x="{edge - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = place(share * most, 1)[0]
        marks.append(f'<text x="{x:.1f}" y="{height - edge + 18}" text-anchor="middle">{share * most:.0f}</text>')
    for row, (name, colour) in enumerate(colours.items()):
        marks.append(f'<text x="{width - edge + 8}" y="{edge + 16 * row}" fill="{colour}">{name}</text>')
    marks.append(f'<text x="{width / 2}" y="{height - 16}" text-anchor="middle">{horizontal}</text>')
    marks.append(f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})">{vertical}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *marks, "</svg>", ""])


if __name__ == "__main__":
    main()

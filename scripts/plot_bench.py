#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON lines of `gimlet bench --json FILE` into a table and SVG plots.

Usage: scripts/plot_bench.py [--out DIR] [--no-table] FILE...      - = standard input

Writes into DIR (default: plots), for what the lines hold:
  CASE.svg             exchange cases: time and floor over tokens, one curve for each shape
  barrier.svg          time of each barrier over ranks
  put_stream.svg       bytes a second over the size of a put
  put_round_trip.svg   time of a round trip over the size of a put
  pipeline.svg         time to the last row over rows, one curve for each way; dashed: the model
  pipeline_first.svg   the same, to the first row
Lines of several runs may be mixed; of equal points the last one counts. Only the standard library is used.
Exit code: 0 = done, 1 = a line is no bench line (its place is named), 2 = bad usage.
"""

import argparse
import json
import math
import pathlib
import sys
from html import escape

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 80, 230, 44, 56
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")


class BadLine(Exception):
    """A line that `gimlet bench` did not write."""


def read_lines(names):
    lines = []
    for name in names:
        text = sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8")
        for number, row in enumerate(text.splitlines(), 1):
            if not row.strip():
                continue
            try:
                line = json.loads(row)
            except json.JSONDecodeError as error:
                raise BadLine(f"{name}:{number}: not JSON: {error}") from error
            if not isinstance(line, dict) or "case" not in line or "median_us" not in line:
                raise BadLine(f"{name}:{number}: no bench line: it needs \"case\" and \"median_us\"")
            lines.append(line)
    return lines


def short(value):
    """A number as people write it: 3 digits, no exponent."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def size_text(count):
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step and count % step == 0:
            return f"{count // step} {unit}"
    return f"{count} B"


def shape_of(line):
    """What tells this line from others of its case, apart from what is on an axis."""
    if line["case"] == "barrier":
        return line["kind"]
    if line["case"] == "handover":
        return line["kind"]
    if line["case"] == "pipeline":
        return f"{line['sync']}, {line['batches']}, H {line['hidden']}, {line['stages']} stages"
    if line["case"] == "put":
        return f"{line['path']}, {line['ranks']} ranks"
    parts = [line.get("type", ""), f"H {line.get('hidden', '?')}", f"{line.get('ranks', '?')} ranks"]
    if line.get("sms_per_rank"):
        parts.append(f"{line['sms_per_rank']} SMs")
    if line.get("routing", "uniform") != "uniform":
        parts.append(line["routing"])
    return ", ".join(parts)


def table(lines):
    rows = [("case", "shape", "at", "ranks", "time us", "floor us", "ratio", "GB/s")]
    for line in lines:
        at = {"barrier": f"{line.get('blocks', '')} blocks",
              "handover": "",
              "put": f"{line.get('measure', '')} {size_text(line.get('bytes', 0))}"}.get(
                  line["case"], f"T {line.get('tokens', '')}")
        rate = line.get("bytes_per_s")
        rows.append((line["case"], shape_of(line), at, str(line.get("ranks", "")),
                     short(line["median_us"]), short(line.get("floor_us", "")),
                     short(line.get("ratio", "")), short(rate / 1e9) if rate else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in rows) + "\n"


class Axis:
    """Logarithmic; maps values to pixels and knows its marks."""

    def __init__(self, values, low_pixel, high_pixel, base):
        low, high = min(values), max(values)
        step = math.log(base)
        self.first = math.floor(math.log(low) / step + 1e-9)
        self.last = max(math.ceil(math.log(high) / step - 1e-9), self.first + 1)
        self.base, self.low_pixel, self.high_pixel = base, low_pixel, high_pixel

    def pixel(self, value):
        share = (math.log(value) / math.log(self.base) - self.first) / (self.last - self.first)
        return self.low_pixel + share * (self.high_pixel - self.low_pixel)

    def marks(self):
        stride = max(1, math.ceil((self.last - self.first) / 8))
        return [float(self.base) ** i for i in range(self.first, self.last + 1, stride)]


def chart(title, x_name, y_name, series, x_text=short):
    """An SVG document. `series`: name -> (dashed, {x: y}); all values positive."""
    points = [(x, y) for _, curve in series.values() for x, y in curve.items()]
    x_axis = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, 2)
    y_axis = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, 10)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>']
    for x in x_axis.marks():
        at = x_axis.pixel(x)
        out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                   f'{escape(x_text(int(x) if x >= 1 else x))}</text>')
    for y in y_axis.marks():
        at = y_axis.pixel(y)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(short(y))}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">'
               f'{escape(x_name)}</text>')
    out.append(f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">'
               f'{escape(y_name)}</text>')
    colours = {}
    for index, (name, (dashed, curve)) in enumerate(series.items()):
        # A floor, or a model, has the colour of its curve.
        colour = colours.setdefault(name.removesuffix(" floor").removesuffix(" model"), COLOURS[len(colours) % len(COLOURS)])
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        pixels = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in sorted(curve.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not dashed:
            out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in pixels)
        at = TOP + 8 + 18 * index
        out.append(f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 38}" y1="{at}" y2="{at}" '
                   f'stroke="{colour}" stroke-width="2"{dash}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 44}" y="{at + 4}">{escape(name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def add(series, name, x, y, dashed=False):
    # A logarithm has no zero; a case without a floor has no floor curve.
    if x and y and x > 0 and y > 0:
        series.setdefault(name, (dashed, {}))[1][x] = y


def charts(lines):
    """File name -> SVG."""
    out = {}
    cases = list(dict.fromkeys(line["case"] for line in lines))
    for case in cases:
        mine = [line for line in lines if line["case"] == case]
        device = mine[-1].get("device", "?")
        if case == "barrier":
            series = {}
            for line in mine:
                add(series, shape_of(line), line["ranks"], line["median_us"])
            out["barrier.svg"] = ("Barriers, " + device, "ranks", "us a barrier", series, short)
        elif case == "put":
            stream, rounds = {}, {}
            for line in mine:
                if line["measure"] == "stream":
                    add(stream, shape_of(line), line["bytes"], line["bytes_per_s"] / 1e9)
                else:
                    add(rounds, shape_of(line), line["bytes"], line["median_us"])
            out["put_stream.svg"] = ("Puts, " + device, "bytes a put", "GB/s a rank", stream, size_text)
            out["put_round_trip.svg"] = ("Put, signal, wait, and back, " + device, "bytes a put",
                                         "us a round trip", rounds, size_text)
        elif case == "handover":
            continue  # a few numbers: they are in the table
        elif case == "pipeline":
            for key, name, what in (("median_us", "pipeline.svg", "last"),
                                    ("first_us", "pipeline_first.svg", "first")):
                series = {}
                for line in mine:
                    add(series, shape_of(line), line["tokens"], line[key])
                    add(series, shape_of(line) + " model", line["tokens"],
                        line["model"][what + "_us"], True)
                out[name] = (f"Pipeline, {device}", "rows", f"us to the {what} row", series, short)
        else:
            series = {}
            for line in mine:
                add(series, shape_of(line), line["tokens"], line["median_us"])
                add(series, shape_of(line) + " floor", line["tokens"], line.get("floor_us"), True)
            out[case + ".svg"] = (f"{case}, {device}", "tokens a rank", "us", series, short)
    return {name: chart(*rest) for name, rest in out.items() if rest[3]}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON lines, - = standard input")
    parser.add_argument("--out", default="plots", metavar="DIR", help="folder of the SVG files (plots)")
    parser.add_argument("--no-table", action="store_true", help="only the plots")
    options = parser.parse_args(arguments)
    try:
        lines = read_lines(options.files)
    except (BadLine, OSError) as error:
        print(f"plot_bench: {error}", file=sys.stderr)
        return 1
    if not options.no_table:
        print(table(lines), end="")
    folder = pathlib.Path(options.out)
    for name, text in charts(lines).items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        print(f"plot_bench: {folder / name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

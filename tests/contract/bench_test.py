#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small runs of `gimlet bench` on the emulator: the lines it writes, and what it refuses.

Usage: bench_test.py GIMLET_PROGRAM"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
SMALL = ("--sms", "1", "--calls", "1", "--warmups", "0", "--barrier-repeats", "2", "--put-bytes",
         "64,4096", "--put-total-kib", "4", "--flush-mib", "0", "--tokens", "8", "--hidden", "64", "--experts", "8",
         "--topk", "2")


def bench(*arguments, ranks="2", **environment):
    done = subprocess.run([PROGRAM, "bench", *arguments, "--ranks", ranks, *SMALL], capture_output=True, text=True,
                          check=False, timeout=300, env=dict(os.environ, **environment))
    return done.returncode, done.stdout, done.stdout + done.stderr


class Bench(unittest.TestCase):
    def lines(self, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lines.jsonl"
            status, text, output = bench(*arguments, "--json", str(path), **environment)
            self.assertEqual(status, 0, output)
            for row in text.splitlines():
                self.assertLessEqual(len(row), 100, row)
            return text, [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]

    def test_one_team_without_gin(self):
        text, lines = self.lines("barrier", "put", "dispatch", GIMLET_EMU_GIN="off")
        kinds = {line["kind"]: line for line in lines if line["case"] == "barrier"}
        self.assertEqual(sorted(kinds), ["gpu", "grid", "nccl lsa", "nvlink"])
        self.assertEqual(kinds["nvlink"]["beside"], "nccl lsa")
        self.assertAlmostEqual(kinds["nvlink"]["ratio"],
                               kinds["nvlink"]["median_us"] / kinds["nccl lsa"]["median_us"])
        puts = {(line["path"], line["measure"], line["bytes"]) for line in lines if line["case"] == "put"}
        self.assertEqual(puts, {(path, measure, size) for path in ("store", "bulk")
                                for measure in ("stream", "round trip") for size in (64, 4096)})
        self.assertEqual([line["case"] for line in lines][-1], "dispatch")
        self.assertIn("NCCL offers no GIN here", text)
        for line in lines:
            self.assertGreater(line["median_us"], 0, line)

    def test_gin(self):
        _, lines = self.lines("barrier", "put", NCCL_LSA_TEAM_SIZE="1", GIMLET_EMU_GIN="gdaki")
        kinds = {line["kind"]: line for line in lines if line["case"] == "barrier"}
        self.assertEqual(kinds["gin"]["beside"], "nccl gin")
        self.assertGreater(kinds["gin"]["ratio"], 0)
        puts = {(line["path"], line["measure"]) for line in lines if line["case"] == "put"}
        self.assertEqual(puts, {("gin single", "stream"), ("gin single", "round trip"),
                                ("gin batch", "stream")})

    def test_two_levels(self):
        """Rows of rails are the distinct pairs of token and team; doorbells, 6 rows or more each."""
        text, lines = self.lines("dispatch", "combine", "--mode", "direct,hybrid", ranks="4", NCCL_LSA_TEAM_SIZE="2",
                                 GIMLET_EMU_GIN="gdaki")
        by_mode = {(line["case"], line["mode"]): line for line in lines}
        self.assertEqual(sorted(by_mode), [(case, mode) for case in ("combine", "dispatch")
                                           for mode in ("direct", "hybrid")])
        for line in lines:
            self.assertEqual(line["gin_rows"], line["gin_rows_floor"], line)
            for name in ("gin_bytes", "lsa_bytes", "puts", "doorbells"):
                self.assertGreaterEqual(line[name], line[name + "_floor"], (name, line))
        there = by_mode["dispatch", "hybrid"]
        self.assertLessEqual(there["gin_rows"], by_mode["dispatch", "direct"]["gin_rows"])
        self.assertLessEqual(there["doorbells"], there["doorbells_most"])
        # One SM, one channel, one other team: rows / 6 rounded up, and one; and one for the count row.
        self.assertEqual(there["doorbells_most"], -(-there["gin_rows"] // 6) + 1 + 1)
        self.assertIn("floor", text)

    def test_pipeline_and_handover(self):
        text, lines = self.lines("handover", "pipeline", "--stages", "2", "--batches", "whole,skewed", "--fifo-slots", "4",
                                 "--fifo-chunk", "2", GIMLET_EMU_GIN="off")
        kinds = {line["kind"]: line for line in lines if line["case"] == "handover"}
        self.assertEqual(list(kinds), ["flag", "fifo", "fifo, 16 bytes"])
        self.assertEqual(kinds["flag"]["ratio"], 1)
        ways = {(line["sync"], line["batches"]): line for line in lines if line["case"] == "pipeline"}
        self.assertEqual(sorted(ways), [(sync, batches) for sync in ("barrier", "fifo")
                                        for batches in ("skewed", "whole")])
        for line in ways.values():
            self.assertGreaterEqual(line["median_us"], line["first_us"])
            self.assertGreater(line["flags"], 0)
        # Rings: the same bytes whatever comes; one hop, one lane, 4 slots.
        for batches in ("whole", "skewed"):
            self.assertEqual(ways["fifo", batches]["buffer_bytes"], 512 + 4 * 128)
        self.assertEqual(ways["barrier", "whole"]["buffer_bytes"], 8 * 128)
        self.assertEqual(ways["barrier", "skewed"]["buffer_bytes"], 2 * 6 * 128)
        self.assertIn("model: a lane copies 25.0 GB/s", text)

    def test_refusals(self):
        for arguments, text in ((("barrier", "--sms", "4000"), "lower --sms"),
                                (("put", "--put-bytes", "24"), "multiple of 16"),
                                (("pipeline", "--stages", "0"), "--stages"),
                                (("pipeline", "--fifo-chunk", "9"), "half of the ring"),
                                (("pipeline", "--fifo-slots", "0"), "capacity >= 1"),
                                (("pipeline", "--hidden", "7"), "multiple of 16"),
                                (("dispatch", "--routing", "log_normal"), "log_normal"),
                                (("dispatch", "--type", "fp4"), "fp4"),
                                (("nonsense",), "nonsense")):
            with self.subTest(arguments=arguments):
                done = subprocess.run([PROGRAM, "bench", *arguments], capture_output=True, text=True,
                                      check=False, timeout=120)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(text, done.stdout + done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()

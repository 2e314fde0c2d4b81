#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `gimlet sim` says: replays, plans, traces.

Usage: sim_test.py GIMLET_PROGRAM"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
RUN = ("--scenario", "nvlink", "--seed", "5")


def sim(*arguments):
    done = subprocess.run([PROGRAM, "sim", *arguments], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


class Sim(unittest.TestCase):
    def one_run(self, *arguments):
        status, text, errors = sim(*RUN, *arguments, "--json")
        self.assertEqual(status, 0, text + errors)
        return json.loads(text)

    def test_the_replay_command_gives_the_same_run(self):
        run = self.one_run("--plan", "random")
        words = run["replay"].split()
        self.assertEqual(words[:2], ["gimlet", "sim"])
        self.assertIn(run["commit"], words)
        status, text, errors = sim(*words[2:])
        self.assertEqual(status, 0, text + errors)
        self.assertEqual(errors, "")
        self.assertIn(run["trace_hash"], text)

    def test_a_replay_of_another_commit_says_so(self):
        run = self.one_run()
        other = ("--commit", "0123456789ab")
        status, _, errors = sim(*RUN, *other, "--trace-hash", run["trace_hash"])
        self.assertEqual(status, 0, errors)  # the same run after all
        self.assertIn("the replay is of commit 0123456789ab, this program is of commit " + run["commit"], errors)
        status, _, errors = sim(*RUN, *other, "--trace-hash", "00000000deadbeef")
        self.assertEqual(status, 1)
        self.assertIn(f"this is another run: trace hash {run['trace_hash']} instead of 00000000deadbeef", errors)
        self.assertIn("it was made by commit 0123456789ab", errors)
        self.assertIn("build 0123456789ab to see it again", errors)

    def test_another_run_of_the_same_commit_says_so(self):
        run = self.one_run()
        status, _, errors = sim(*RUN, "--commit", run["commit"], "--trace-hash", "00000000deadbeef")
        self.assertEqual(status, 1)
        self.assertIn("program, plan or sizes differ", errors)
        self.assertNotIn("it was made by commit", errors)

    def test_a_malformed_plan_names_file_and_field(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plan.json"
            path.write_text('{"delay": {"min": "5 parsecs"}}', encoding="utf-8")
            status, _, errors = sim(*RUN, "--plan", str(path))
            self.assertNotEqual(status, 0)
            self.assertIn(str(path), errors)
            self.assertIn("delay.min", errors)
            path.write_text('{"delay": {"min": "5us"}}', encoding="utf-8")
            self.assertEqual(self.one_run("--plan", str(path))["plan"]["delay"]["min"], "5000ns")

    def test_a_trace_has_each_rank_and_pairs_of_events(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            status, text, errors = sim("--scenario", "four-ranks", "--seed", "1", "--trace", str(path))
            self.assertEqual(status, 0, text + errors)
            self.assertIn(str(path), text)
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(names, {f"rank {rank}" for rank in range(4)})
        open_spans = {}
        for event in events:
            if event["ph"] == "M":
                continue
            self.assertGreaterEqual(event["ts"], 0)
            place = (event["pid"], event["tid"])
            open_spans[place] = open_spans.get(place, 0) + {"B": 1, "E": -1, "i": 0}[event["ph"]]
            self.assertGreaterEqual(open_spans[place], 0, event)
        self.assertEqual(set(open_spans.values()), {0})
        self.assertTrue(any("dispatch" in event["name"] for event in events))
        status, _, errors = sim(*RUN, "--trace", "/nowhere/trace.json")
        self.assertNotEqual(status, 0)
        self.assertIn("/nowhere/trace.json", errors)

    def test_a_plan_for_more_ranks_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plan.json"
            path.write_text('{"slow": {"rank": 9, "factor": 2}}', encoding="utf-8")
            status, _, errors = sim(*RUN, "--plan", str(path))
        self.assertNotEqual(status, 0)
        self.assertIn("slow.rank: 9 is not one of the", errors)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()

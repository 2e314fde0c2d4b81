#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts: check_includes.py on planted violations, catch_summary.awk, test.sh, gpu_test.sh among stand-ins,
plot_bench.py; the table of tests/README.md."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class IncludeCheck(unittest.TestCase):
    """Each test builds a small tree, clean but for what it plants."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for header in ("device/abi/limits.hpp", "device/core/wait.cuh", "device/sync/barrier.cuh",
                       "device/channel/fifo.cuh", "device/kernels/launch.hpp", "device/kernels/copy.cuh",
                       "host/base/error.hpp", "host/cuda/stream.hpp", "host/bootstrap/bootstrap.hpp",
                       "host/nccl/window.hpp", "host/emulator/engine.hpp", "runtime/runtime.hpp",
                       "runtime/cli/demo.hpp", "runtime/sim/world.hpp", "host/emulator/include/gimlet_emu_device.hpp"):
            self.plant(header, "")

    def plant(self, path, body, head=SPDX):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        once = "#pragma once\n" if file.suffix in (".hpp", ".cuh", ".h") else ""
        file.write_text(head + once + body, encoding="utf-8")

    def check(self):
        return run(sys.executable, str(ROOT / "scripts/check_includes.py"), str(self.root))

    def assert_clean(self):
        status, output = self.check()
        self.assertEqual(status, 0, output)

    def assert_caught(self, rule, place):
        status, output = self.check()
        self.assertEqual(status, 1, output)
        self.assertIn(f"[{rule}]", output)
        self.assertIn(place, output)
        self.assertIn(", 1 violations", output)

    def include(self, source, target):
        self.plant(source, f'#include "{target}"\n')

    def test_clean_tree(self):
        self.include("runtime/runtime.cc", "host/nccl/window.hpp")
        self.include("runtime/exchange.cc", "device/kernels/launch.hpp")
        self.include("runtime/plan.cc", "device/abi/limits.hpp")
        self.include("host/nccl/window.cc", "host/cuda/stream.hpp")
        self.include("device/kernels/dispatch.cu", "device/channel/fifo.cuh")
        self.plant("device/core/clock.cuh", "#if GIMLET_EMULATOR\n#include <gimlet_emu_device.hpp>\n#endif\n"
                   '__device__ inline void f() { asm volatile("membar.sys;"); }\n')
        self.plant("host/base/env.cc", 'const char* e() { return std::getenv("A"); }\n')
        self.include("tests/unit/a.cc", "host/emulator/engine.hpp")
        self.include("runtime/sim/world.cc", "host/emulator/engine.hpp")
        self.include("runtime/cli/sim.cc", "runtime/sim/world.hpp")
        self.assert_clean()

    def test_comments_and_strings_are_not_code(self):
        self.plant("host/base/a.cc", '// getenv("X") and asm volatile("")\n/* f<<<1, 2>>>() */\n'
                   'const char* s = "getenv( <<<";\nint n = 1\'000\'000;\n'
                   'const char* r = R"(asm("x"))";\n// #include "runtime/runtime.hpp"\n')
        self.assert_clean()

    def test_directions(self):
        cases = [
            ("host/base/a.cc", "runtime/runtime.hpp"),
            ("host/nccl/a.cc", "device/core/wait.cuh"),
            ("host/nccl/a.cc", "device/kernels/launch.hpp"),
            ("host/base/a.cc", "host/cuda/stream.hpp"),
            ("host/bootstrap/a.cc", "host/nccl/window.hpp"),
            ("device/abi/a.hpp", "device/core/wait.cuh"),
            ("device/abi/a.hpp", "host/base/error.hpp"),
            ("device/core/a.cuh", "device/sync/barrier.cuh"),
            ("device/sync/a.cuh", "device/channel/fifo.cuh"),
            ("device/channel/a.cuh", "device/kernels/copy.cuh"),
            ("runtime/a.cc", "device/kernels/copy.cuh"),
            ("runtime/a.cc", "device/sync/barrier.cuh"),
            ("runtime/a.cc", "runtime/cli/demo.hpp"),
            ("runtime/a.cc", "host/emulator/engine.hpp"),
            ("runtime/cli/a.cc", "host/emulator/engine.hpp"),
            ("runtime/cli/sim.cc", "host/emulator/engine.hpp"),
            ("runtime/cli/demo.cc", "runtime/sim/world.hpp"),
            ("runtime/runtime.cc", "runtime/sim/world.hpp"),
            ("mpi_tests/cases/a.cc", "runtime/sim/world.hpp"),
            ("mpi_tests/cases/a.cc", "host/emulator/engine.hpp"),
            ("host/emulator/a.cc", "host/base/error.hpp"),
        ]
        for source, target in cases:
            with self.subTest(source=source, target=target):
                self.include(source, target)
                self.assert_caught("direction", source + (":3:" if source.endswith("pp") or
                                                          source.endswith("cuh") else ":2:"))
                (self.root / source).unlink()

    def test_unknown_room(self):
        self.plant("host/misc/a.cc", "")
        self.assert_caught("direction", "host/misc/a.cc")

    def test_hooks_outside_core(self):
        self.plant("device/sync/a.cuh", "#include <gimlet_emu_device.hpp>\n")
        self.assert_caught("hooks", "device/sync/a.cuh:3")

    def test_path_from_root(self):
        self.include("host/base/a.cc", "error.hpp")
        self.assert_caught("path", "host/base/a.cc:2")

    def test_ours_in_angle_brackets(self):
        self.plant("host/base/a.cc", "#include <runtime/runtime.hpp>\n")
        self.assert_caught("path", "host/base/a.cc:2")

    def test_getenv(self):
        for body in ('auto e = getenv("A");\n', 'auto e = std::secure_getenv ("A");\n'):
            with self.subTest(body=body):
                self.plant("runtime/a.cc", body)
                self.assert_caught("getenv", "runtime/a.cc:2")

    def test_asm_outside_core(self):
        self.plant("device/sync/a.cuh", 'void f() {\n    asm\n    ("nop");\n}\n')
        self.assert_caught("asm", "device/sync/a.cuh:4")

    def test_asm_in_core_but_not_cuh(self):
        self.plant("device/core/a.hpp", 'void f() { __asm__ __volatile__("nop"); }\n')
        self.assert_caught("asm", "device/core/a.hpp:3")

    def test_asm_in_three_files(self):
        for name in "abc":
            self.plant(f"device/core/{name}.cuh", 'void f() { asm volatile("nop;"); }\n')
        self.assert_caught("asm", "device/core/c.cuh")

    def test_backend_conditions(self):
        for line in ("#ifdef __CUDA_ARCH__", "#if defined(GIMLET_EMULATOR)", "# elif 1 && __CUDACC__"):
            with self.subTest(line=line):
                self.plant("device/kernels/a.cuh", f"#if 0\n#endif\n{line}\n#endif\n")
                self.assert_caught("backend", "device/kernels/a.cuh:5")

    def test_launch_syntax(self):
        self.plant("device/kernels/a.cu", "void f() { g<<<1, 32>>>(); }\n")
        self.assert_caught("launch", "device/kernels/a.cu:2")

    def test_static_shared_memory(self):
        self.plant("device/kernels/a.cu", "__device__ void f() { __shared__ int a[4]; }\n")
        self.assert_caught("shared", "device/kernels/a.cu:2")

    def test_internals_of_nccl(self):
        for line in ("auto h = gin._ginHandle;", "ncclWindow_vidmem* w;", "auto* q = (ncclGinGdakiGPUContext*)p;",
                     "#include <nccl_device/gin/gdaki/gin_gdaki.h>"):
            with self.subTest(line=line):
                self.plant("device/core/a.cuh", line + "\n")
                self.assert_caught("internals", "device/core/a.cuh:3")

    def test_header_without_once(self):
        (self.root / "host/base/a.hpp").write_text(SPDX, encoding="utf-8")
        self.assert_caught("once", "host/base/a.hpp:1")

    def test_source_without_licence(self):
        self.plant("host/base/a.cc", "", head="// Copyright\n")
        self.assert_caught("licence", "host/base/a.cc:1")

    def test_empty_tree_is_no_success(self):
        with tempfile.TemporaryDirectory() as empty:
            status, output = run(sys.executable, str(ROOT / "scripts/check_includes.py"), empty)
        self.assertEqual(status, 2, output)

class CatchSummary(unittest.TestCase):
    """The closing lines of Catch2 v2 and v3, as the programs print them."""

    def count(self, output):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            log.write(output)
            log.flush()
            status, counted = run("awk", "-f", str(ROOT / "scripts/catch_summary.awk"), log.name)
        self.assertEqual(status, 0, counted)
        return counted.split()

    def test_all_passed(self):
        self.assertEqual(self.count("All tests passed (12 assertions in 3 test cases)\n"), ["3", "0", "0"])
        self.assertEqual(self.count("All tests passed (1 assertion in 1 test case)\n"), ["1", "0", "0"])

    def test_some_failed(self):
        self.assertEqual(self.count("test cases: 5 | 3 passed | 2 failed\nassertions: 9 | 6 passed | 3 failed\n"),
                         ["3", "2", "0"])
        self.assertEqual(self.count("test cases: 1 | 1 failed\nassertions: - none -\n"), ["0", "1", "0"])

    def test_expected_failures_and_skips(self):
        self.assertEqual(self.count("test cases: 9 |  4 passed |  2 failed | 2 skipped | 1 failed as expected\n"),
                         ["5", "2", "2"])

    def test_nothing_ran(self):
        self.assertEqual(self.count("No tests ran\n"), ["0", "0", "0"])

    def test_crash_has_no_count(self):
        self.assertEqual(self.count("Filters: \"a\"\nSegmentation fault\n"), [])


class FieldTable(unittest.TestCase):
    """tests/README.md maps what broke others to tests: each test that it names must exist."""

    def texts(self, folder):
        """The literals of all C++ files below it, with adjacent ones joined."""
        for file in sorted((ROOT / folder).rglob("*.cc")):
            joined = re.sub(r'"\s*"', "", file.read_text(encoding="utf-8"))
            yield from re.findall(r'"((?:[^"\\\n]|\\.)+)"', joined)

    def test_names(self):
        tests = set(self.texts("tests"))
        cases = set(self.texts("mpi_tests/cases"))
        runs = (ROOT / "mpi_tests/run_cases.sh").read_text(encoding="utf-8")
        named = 0
        for line in (ROOT / "tests/README.md").read_text(encoding="utf-8").splitlines():
            if not line.startswith("| ") or line.count("|") != 4:
                continue
            where = line.split("|")[3]
            for name in re.findall(r'"([^"]+)"', where):
                named += 1
                self.assertTrue(any(name in text for text in tests) or name in runs, f"{name!r} in: {line}")
            for name in re.findall(r"`([a-z]+/[^`]+)`", where):
                named += 1
                if (ROOT / name).exists():
                    continue
                # Some lists of cases add their group's name themselves. Litmus programs are in tests/.
                short = name.removesuffix(" ...").split("/", 1)[1]
                found = any(short in text for text in cases | tests) if short else True
                self.assertTrue(found, f"{name!r} in: {line}")
        self.assertGreater(named, 80)


class SoakCommand(unittest.TestCase):
    def test_bad_usage(self):
        for arguments in (["soon"], ["-3"], ["--seed"], ["--jobs", "0"]):
            with self.subTest(arguments=arguments):
                status, output = run("bash", str(ROOT / "scripts/soak.sh"), *arguments)
                self.assertEqual(status, 2, output)
                self.assertIn("soak:", output)

    def test_help(self):
        status, output = run("bash", str(ROOT / "scripts/soak.sh"), "--help")
        self.assertEqual(status, 0)
        self.assertIn("[MINUTES]", output)


class TestCommand(unittest.TestCase):
    def test_bad_usage(self):
        for arguments in (["--nonsense"], ["--only"]):
            with self.subTest(arguments=arguments):
                status, _ = run("bash", str(ROOT / "scripts/test.sh"), *arguments)
                self.assertEqual(status, 2)

    def test_help_names_every_step(self):
        status, output = run("bash", str(ROOT / "scripts/test.sh"), "--help")
        self.assertEqual(status, 0)
        source = (ROOT / "scripts/test.sh").read_text(encoding="utf-8")
        steps = source.split("all_steps=(")[1].split(")")[0].split()
        self.assertGreaterEqual(len(steps), 8)
        for step in steps:
            self.assertRegex(output, rf"(?m)^  {step} ")
            self.assertIn(f"step_{step}()", source)


class GpuTest(unittest.TestCase):
    """scripts/gpu_test.sh among stand-ins for nvidia-smi, mpirun, MPS and compute-sanitizer."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.calls = self.root / "calls"
        self.calls.write_text("")
        self.plant("build/mpi_tests/gimlet_mpi_cases", "")
        self.plant("bin/nvidia-smi", "echo 0")
        self.plant("bin/mpirun", 'echo "6 passed, 0 failed, 1 skipped"')
        self.plant("bin/nvidia-cuda-mps-control", '[ "$1" = -d ] || cat >> "$CALLS"')
        self.plant("bin/compute-sanitizer", "")

    def plant(self, path, body):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('#!/bin/bash\necho "$(basename "$0") $* ${CUDA_MPS_PIPE_DIRECTORY:+mps} '
                        'lsa=${NCCL_LSA_TEAM_SIZE:-}" >> "$CALLS"\n' + body + "\n")
        file.chmod(0o755)

    def gpu_test(self, *arguments):
        environment = dict(os.environ, PATH=f"{self.root}/bin:{os.environ['PATH']}", CALLS=str(self.calls))
        environment.pop("CUDA_MPS_PIPE_DIRECTORY", None)
        done = subprocess.run(["bash", str(ROOT / "scripts/gpu_test.sh"), "--build", str(self.root / "build"),
                               "--logs", str(self.root / "logs"), *arguments],
                              capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stdout + done.stderr, self.calls.read_text(encoding="utf-8")

    def test_no_gpu_is_skipped(self):
        self.plant("bin/nvidia-smi", "exit 9")
        status, output, calls = self.gpu_test()
        self.assertEqual(status, 0, output)
        self.assertIn("no GPU here", output)
        self.assertEqual(output.splitlines()[-1], "0 passed, 0 failed, 4 skipped")
        self.assertNotIn("mpirun", calls)

    def test_ranks_teams_and_mps(self):
        status, output, calls = self.gpu_test()
        self.assertEqual(status, 0, output)
        runs = [row for row in calls.splitlines() if row.startswith("mpirun")]
        seen = [(int(row.split(" -n ")[1].split()[0]), int(row.rsplit("lsa=", 1)[1])) for row in runs]
        # A team of all is NCCL's own choice (0).
        self.assertEqual(seen, [(1, 0), (2, 0), (2, 1), (4, 0), (4, 2), (4, 1), (8, 0), (8, 4), (8, 2)])
        # MPS only where ranks outnumber the one GPU, and ended with quit.
        self.assertEqual([" mps " in row for row in runs], [False] + [True] * 8)
        self.assertEqual(calls.count("nvidia-cuda-mps-control -d"), 1)
        self.assertIn("quit", calls)
        self.assertEqual(output.splitlines()[-1], "54 passed, 0 failed, 9 skipped")

    def test_a_hang_is_a_failure_with_reports(self):
        self.plant("bin/mpirun", 'echo "gimlet error: rank 1: barrier waited 2 s for rank 0"; exec sleep 60')
        status, output, calls = self.gpu_test("--ranks", "2", "--seconds", "1")
        self.assertEqual(status, 1, output)
        self.assertIn("ended at the deadline of 1 s", output)
        self.assertIn("rank 1: barrier waited 2 s for rank 0", output)
        self.assertRegex(output.splitlines()[-1], r"^0 passed, 2 failed, 0 skipped$")
        # MPS is not trusted after a hang.
        self.assertGreaterEqual(calls.count("nvidia-cuda-mps-control -d"), 2)

    def test_teams_without_gin_are_skipped(self):
        self.plant("bin/mpirun", 'if [ "$NCCL_LSA_TEAM_SIZE" = 1 ]; then echo "FAILED creation: NCCL offers none that '
                                 'reaches all ranks"; echo "0 passed, 1 failed, 0 skipped"; exit 1; fi\n'
                                 'echo "6 passed, 0 failed, 1 skipped"')
        status, output, _ = self.gpu_test("--ranks", "2")
        self.assertEqual(status, 0, output)
        self.assertIn("LSA teams of 1: skipped", output)
        self.assertEqual(output.splitlines()[-1], "6 passed, 0 failed, 2 skipped")

    def test_hidden_gpus_do_not_count(self):
        self.plant("bin/nvidia-smi", "echo 0; echo 1")
        for visible, shared in ((None, False), ("0", True), ("0,1", False)):
            self.calls.write_text("")
            environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
            with unittest.mock.patch.dict(os.environ, environment):
                status, output, calls = self.gpu_test("--ranks", "2")
            self.assertEqual(status, 0, output)
            self.assertEqual("nvidia-cuda-mps-control -d" in calls, shared, visible)

    def test_rma_plugin(self):
        status, output, _ = self.gpu_test("--rma", "--ranks", "2")
        self.assertEqual(status, 1, output)
        self.assertIn("no libnccl-rma-gimlet.so", output)
        self.plant("build/host/rma_plugin/libnccl-rma-gimlet.so", "")
        self.plant("bin/mpirun", 'echo "plugin $NCCL_RMA_PLUGIN type $NCCL_GIN_TYPE" >> "$CALLS"\n'
                                 'echo "6 passed, 0 failed, 1 skipped"')
        status, output, calls = self.gpu_test("--rma", "--ranks", "2")
        self.assertEqual(status, 0, output)
        plugin = (self.root / "build/host/rma_plugin/libnccl-rma-gimlet.so").resolve()
        self.assertEqual(calls.count(f"plugin {plugin} type 2"), 2)

    def test_sanitizer(self):
        self.plant("bin/mpirun", 'echo "3 passed, 0 failed, 0 skipped"; exit 86')
        status, output, calls = self.gpu_test("--sanitize", "memcheck")
        self.assertEqual(status, 1, output)
        self.assertIn("-n 1 compute-sanitizer --tool memcheck --error-exitcode 86", calls)
        self.assertIn("--only steps/ --quick", calls)
        self.assertEqual(output.splitlines()[-1], "3 passed, 1 failed, 0 skipped")
        status, output, _ = self.gpu_test("--sanitize", "nonsense")
        self.assertEqual(status, 2, output)


class PlotBench(unittest.TestCase):
    LINES = (
        '{"case":"barrier","kind":"nvlink","ranks":4,"blocks":1,"median_us":1.1,"ratio":0.9}',
        '{"case":"barrier","kind":"nccl lsa","ranks":4,"blocks":1,"median_us":1.2}',
        '{"case":"put","path":"bulk","measure":"stream","ranks":4,"bytes":1024,"bytes_per_s":1e9,'
        '"median_us":3}',
        '{"case":"put","path":"bulk","measure":"round trip","ranks":4,"bytes":1024,"median_us":3.4}',
        '{"case":"launch","type":"bf16","ranks":4,"hidden":64,"tokens":8,"floor_us":0,"median_us":5.8}',
        '{"case":"dispatch","type":"bf16","ranks":4,"hidden":64,"tokens":8,"floor_us":8,"median_us":40}',
        '{"case":"dispatch","type":"bf16","ranks":4,"hidden":64,"tokens":64,"floor_us":60,"median_us":90}',
        '{"case":"handover","kind":"fifo","ranks":2,"median_us":0.7,"ratio":1.1}',
        '{"case":"pipeline","sync":"barrier","batches":"whole","hidden":64,"stages":3,"tokens":8,"first_us":9,'
        '"median_us":12,"model":{"first_us":8,"last_us":11}}',
        '{"case":"pipeline","sync":"fifo","batches":"whole","hidden":64,"stages":3,"tokens":8,"first_us":3,'
        '"median_us":7,"model":{"first_us":2,"last_us":6}}',
    )

    def plot(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "lines.jsonl"
            source.write_text(text, encoding="utf-8")
            status, output = run(sys.executable, str(ROOT / "scripts/plot_bench.py"), str(source),
                                 "--out", str(pathlib.Path(folder) / "plots"))
            plots = {file.name: ElementTree.parse(file).getroot()
                     for file in (pathlib.Path(folder) / "plots").glob("*.svg")}
        return status, output, plots

    def test_table_and_plots(self):
        status, output, plots = self.plot("\n".join(self.LINES) + "\n")
        self.assertEqual(status, 0, output)
        self.assertEqual(sorted(plots), ["barrier.svg", "dispatch.svg", "launch.svg", "pipeline.svg",
                                         "pipeline_first.svg", "put_round_trip.svg", "put_stream.svg"])
        svg = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(plots["barrier.svg"].findall(svg + "polyline")), 2)
        # Two ways, each with its model.
        self.assertEqual(len(plots["pipeline.svg"].findall(svg + "polyline")), 4)
        # Time and floor; no floor where it is zero.
        self.assertEqual(len(plots["dispatch.svg"].findall(svg + "polyline")), 2)
        self.assertEqual(len(plots["launch.svg"].findall(svg + "polyline")), 1)
        # A longer time is higher up, more tokens are further right.
        points = [tuple(map(float, point.split(",")))
                  for point in plots["dispatch.svg"].find(svg + "polyline").get("points").split()]
        self.assertLess(points[0][0], points[1][0])
        self.assertGreater(points[0][1], points[1][1])
        self.assertRegex(output, r"(?m)^dispatch +bf16, H 64, 4 ranks +T 64 +4 +90 +60")

    def test_other_lines_are_named(self):
        for bad in ("{", '{"case":"put"}', "[]"):
            with self.subTest(bad=bad):
                status, output, _ = self.plot(self.LINES[0] + "\n" + bad + "\n")
                self.assertEqual(status, 1, output)
                self.assertIn("lines.jsonl:2:", output)

    def test_shipped_results(self):
        for source in (ROOT / "mpi_tests/bench/results").glob("*.jsonl"):
            with self.subTest(source=source.name):
                status, output, plots = self.plot(source.read_text(encoding="utf-8"))
                self.assertEqual(status, 0, output)
                self.assertIn("dispatch.svg", plots)


if __name__ == "__main__":
    unittest.main()

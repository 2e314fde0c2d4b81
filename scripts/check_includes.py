#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that dependencies run one way, and the few rules that keep machine details in their room.

Usage: scripts/check_includes.py [ROOT]      exit 0: clean, 1: violations (one line each), 2: bad usage

Rules, by name:
  direction    runtime -> host -> device/abi, and runtime -> device/kernels/launch.hpp; inside device:
               abi <- core <- sync <- channel <- kernels; inside host: base <- cuda, bootstrap <- nccl;
               the RMA plugin's kernel may use device/core;
               host/emulator is a leaf: only tests and runtime/sim include it, runtime/sim is
               included by tests and by runtime/cli's sim*.cc alone
  hooks        the emulator's device hooks are included by device/core only
  path         a quoted include starts at the repository root and names a file that exists
  getenv       only in host/base/env.cc (and the emulator, which is a machine of its own)
  asm          inline assembly only in device/core/*.cuh, in at most two files (and the emulator)
  backend      conditional compilation on the backend only in device/core (and the emulator)
  launch       no <<<...>>> launches
  internals    only NCCL's public API: no private member, no type or header of its implementation
               (but in the emulator, which implements it)
  shared       no static __shared__ variables; dynamic shared memory comes from device/core
  once         each header has #pragma once
  licence      the first line of each source names the licence
"""

import pathlib
import re
import sys

SUFFIXES = {".hpp", ".h", ".cuh", ".c", ".cc", ".cu"}
FOLDERS = ("device", "host", "runtime", "tests", "mpi_tests")
HEADER_SUFFIXES = {".hpp", ".h", ".cuh"}

# Room -> rooms whose headers it may include. A room is a path prefix; the longest prefix wins.
ABI, CORE, SYNC, CHANNEL, KERNELS = (
    "device/abi", "device/core", "device/sync", "device/channel", "device/kernels")
BASE, CUDA, BOOTSTRAP, NCCL = "host/base", "host/cuda", "host/bootstrap", "host/nccl"
EMULATOR, RMA_PLUGIN = "host/emulator", "host/rma_plugin"
RMA_KERNEL = "host/rma_plugin/copier_kernel.cu"  # device code
LAUNCH = "device/kernels/launch.hpp"
HOST = {BASE, CUDA, BOOTSTRAP, NCCL}
RUNTIME, SIM = "runtime", "runtime/sim"
SHARED_TESTS = "tests/litmus"  # programs that mpi_tests builds too
ALLOWED = {
    ABI: {ABI},
    CORE: {ABI, CORE},
    SYNC: {ABI, CORE, SYNC},
    CHANNEL: {ABI, CORE, SYNC, CHANNEL},
    KERNELS: {ABI, CORE, SYNC, CHANNEL, KERNELS},
    BASE: {ABI, BASE},
    CUDA: {ABI, BASE, CUDA},
    BOOTSTRAP: {BASE, BOOTSTRAP},
    NCCL: {ABI} | HOST,
    RMA_PLUGIN: {BASE, RMA_PLUGIN},
    RMA_KERNEL: {CORE, RMA_PLUGIN},
    EMULATOR: {EMULATOR},
    RUNTIME: {ABI, LAUNCH, RUNTIME} | HOST,
    "runtime/capi": {ABI, LAUNCH, RUNTIME, "runtime/capi"} | HOST,
    "runtime/cli": {ABI, LAUNCH, RUNTIME, "runtime/capi", "runtime/cli"} | HOST,
    # Simulated worlds; built for the emulator only.
    SIM: {ABI, CORE, SYNC, CHANNEL, KERNELS, RUNTIME, SIM, EMULATOR} | HOST,
    "mpi_tests": {ABI, CORE, SYNC, CHANNEL, KERNELS, RUNTIME, "runtime/capi", "mpi_tests",
                  "tests/support", SHARED_TESTS} | HOST,
}
FREE_ROOMS = ("tests",)  # tests may include everything

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]*)"|<([^>]*)>)', re.M)
GETENV = re.compile(r"\b(?:secure_)?getenv[ \t]*\(")
ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b[ \t]*(?:volatile|__volatile__|goto)?[ \t\n]*\(")
BACKEND_WORDS = ("GIMLET_EMULATOR", "GIMLET_BACKEND", "GIMLET_TSAN", "GIMLET_ASAN", "__CUDACC__",
                 "__CUDA_ARCH__", "__NVCC__", "__SANITIZE_THREAD__", "__SANITIZE_ADDRESS__")
BACKEND = re.compile(
    r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b[^\n]*\b(?:" + "|".join(BACKEND_WORDS) + r")\b", re.M)
LAUNCHES = re.compile(r"<<<")
INTERNALS = re.compile(
    r"\b_gin\w+|\bncclWindow_vidmem\b|\bncclGin\w*GPUContext\b|\bresourceWindow_inlined\b"
    r"|\bginSignalShadows\b|\bginHandles\b|\bwindowTable\b")
INTERNAL_HEADERS = ("nccl_device/impl/", "nccl_device/gin/")
SHARED = re.compile(r"(?<!extern )\b__shared__\b")
LITERAL_OR_COMMENT = re.compile(
    r"""R"(?P<delim>[^\s()\\]{0,16})\(.*?\)(?P=delim)"   # raw string
      | "(?:\\.|[^"\\\n])*"                              # string
      | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'              # character, not a digit separator
      | //(?:\\\n|[^\n])*                                # line comment
      | /\*.*?\*/                                        # block comment
    """, re.S | re.X)


def blank(match):
    """Blanks a comment or literal but keeps its line breaks, so that line numbers stay right."""
    return re.sub(r"[^\n]", " ", match.group(0))


def strip_comments(text):
    def keep_strings(match):
        return blank(match) if match.group(0).startswith(("//", "/*")) else match.group(0)
    return LITERAL_OR_COMMENT.sub(keep_strings, text)


def strip_literals(text):
    return LITERAL_OR_COMMENT.sub(blank, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def room_of(path):
    """The room of a repository path such as 'device/core/wait.cuh', or None outside all rooms."""
    best = None
    for room in (*ALLOWED, *FREE_ROOMS, SHARED_TESTS):
        if (path == room or path.startswith(room + "/")) and (best is None or len(room) > len(best)):
            best = room
    return best


def is_free(path):
    return path.startswith(tuple(room + "/" for room in FREE_ROOMS))


def may_include(source, target):
    """Whether the file source may include the file target; both are repository paths."""
    if is_free(source):
        return True
    allowed = ALLOWED.get(room_of(source))
    if allowed is None:
        return False
    if source.startswith("runtime/cli/sim") and room_of(target) == SIM:
        return True
    return target in allowed or room_of(target) in allowed


class Checker:
    def __init__(self, root):
        self.root = root
        self.violations = []
        self.asm_files = set()
        self.hook_names = self.find_hook_names()

    def find_hook_names(self):
        """Emulator headers that replace nothing of the real machine, under their angle-bracket names."""
        include = self.root / "host" / "emulator" / "include"
        return {p.relative_to(include).as_posix() for p in include.rglob("gimlet_emu*")}

    def report(self, path, line, rule, message):
        self.violations.append(f"{path}:{line}: [{rule}] {message}")

    def check_includes(self, path, text):
        for match in INCLUDE.finditer(text):
            line = line_of(text, match.start(1) if match.group(1) is not None else match.start(2))
            quoted, angled = match.groups()
            name = quoted if quoted is not None else angled
            is_hook = name in self.hook_names or name.startswith("host/emulator/include/gimlet_emu")
            if is_hook:
                if not (path.startswith((CORE + "/", EMULATOR + "/")) or is_free(path)):
                    self.report(path, line, "hooks", f"'{name}' belongs to device/core alone")
            elif quoted is not None:
                self.check_quoted(path, line, quoted)
            elif name.startswith(INTERNAL_HEADERS) and not path.startswith(EMULATOR + "/"):
                self.report(path, line, "internals", f"<{name}> is NCCL's own")
            elif (self.root / angled).is_file() and room_of(angled):
                self.report(path, line, "path", f"<{angled}> is ours: write it in quotes")

    def check_quoted(self, path, line, name):
        if not (self.root / name).is_file():
            # The emulator's stand-in headers include each other under the names of the real ones.
            stand_in = self.root / "host" / "emulator" / "include"
            if path.startswith(EMULATOR + "/") and (
                    (stand_in / name).is_file()
                    or (self.root / pathlib.PurePosixPath(path).parent / name).is_file()):
                return
            self.report(path, line, "path", f"\"{name}\" is no file from the repository root")
        elif not may_include(path, name):
            self.report(path, line, "direction",
                        f"{room_of(path)} must not include \"{name}\" ({room_of(name)})")

    def check_words(self, path, text):
        in_emulator = path.startswith(EMULATOR + "/")
        if is_free(path) or path.startswith("mpi_tests/") or in_emulator:
            words = []
        else:
            words = [(GETENV, "getenv", "read the environment in host/base/env.cc",
                      path == "host/base/env.cc")]
        if not (is_free(path) or in_emulator):
            in_core = path.startswith(CORE + "/")
            words += [
                (BACKEND, "backend", "only device/core may tell the backends apart", in_core),
                (LAUNCHES, "launch", "launch through cudaLaunchKernelEx", False),
                (INTERNALS, "internals", "only NCCL's public API", False),
                (SHARED, "shared", "take dynamic shared memory from device/core", in_core),
            ]
            for match in ASM.finditer(text):
                self.asm_files.add(path)
                if not (in_core and path.endswith(".cuh")):
                    self.report(path, line_of(text, match.start()), "asm",
                                "inline assembly belongs in device/core/*.cuh")
        for pattern, rule, message, permitted in words:
            for match in () if permitted else pattern.finditer(text):
                self.report(path, line_of(text, match.start()), rule, message)

    def check_file(self, file):
        path = file.relative_to(self.root).as_posix()
        raw = file.read_text(encoding="utf-8")
        if not raw.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            self.report(path, 1, "licence",
                        "the first line must be '// SPDX-License-Identifier: Apache-2.0'")
        if room_of(path) is None:
            self.report(path, 1, "direction", "this file is in no room that design and script know")
            return
        self.check_includes(path, strip_comments(raw))
        code = strip_literals(raw)
        self.check_words(path, code)
        if file.suffix in HEADER_SUFFIXES and "#pragma once" not in code:
            self.report(path, 1, "once", "header without #pragma once")

    def run(self):
        files = sorted(p for folder in FOLDERS for p in (self.root / folder).rglob("*")
                       if p.suffix in SUFFIXES and p.is_file())
        for file in files:
            self.check_file(file)
        if len(self.asm_files) > 2:
            self.report(sorted(self.asm_files)[2], 1, "asm",
                        "inline assembly in more than two files: " + ", ".join(sorted(self.asm_files)))
        return len(files)


def main(arguments):
    if len(arguments) > 1 or arguments and arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    checker = Checker(root)
    count = checker.run()
    for violation in checker.violations:
        print(violation)
    if count == 0:
        print(f"check_includes: no source file under {root}; expected {', '.join(FOLDERS)}")
        return 2
    print(f"check_includes: {count} files, {len(checker.violations)} violations")
    return 1 if checker.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/code_place.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace gimlet::emu {
namespace {

struct Frame {
    std::string function;
    std::string place;
};

// Paths start at the repository's folders, wherever it was built.
std::string short_path(const std::string& place) {
    size_t best = std::string::npos;
    for (const char* folder : {"/device/", "/host/", "/runtime/", "/tests/", "/mpi_tests/"}) {
        best = std::min(best, place.rfind(folder));
    }
    return best == std::string::npos ? place : place.substr(best + 1);
}

bool is_wrapper(const std::string& place) {
    return place.rfind("device/core/", 0) == 0 || place.rfind("host/emulator/", 0) == 0 ||
           place.rfind("??", 0) == 0;
}

std::string read_line(std::FILE* pipe) {
    std::string line;
    char buffer[512];
    while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) {
        line += buffer;
        if (line.back() == '\n') break;
    }
    while (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
}

}  // namespace

std::string code_place(const void* return_address) {
    if (return_address == nullptr) return "?";
    Dl_info module{};
    if (dladdr(return_address, &module) == 0 || module.dli_fname == nullptr) return "?";
    // The call is before the return address.
    const uintptr_t offset = reinterpret_cast<uintptr_t>(return_address) -
                             reinterpret_cast<uintptr_t>(module.dli_fbase) - 1;
    char text[64];
    std::snprintf(text, sizeof(text), " 0x%zx", static_cast<size_t>(offset));
    const std::string command =
        std::string("addr2line -e '") + module.dli_fname + "' -i -f -C" + text + " 2>/dev/null";
    std::string chosen;
    if (std::FILE* const pipe = popen(command.c_str(), "r")) {
        for (;;) {
            Frame frame;
            frame.function = read_line(pipe);
            frame.place = short_path(read_line(pipe));
            if (frame.place.empty()) break;
            if (chosen.empty() && !is_wrapper(frame.place)) {
                chosen = frame.place.substr(0, frame.place.find(" (disc"));
            }
        }
        pclose(pipe);
    }
    return chosen.empty() ? std::string(module.dli_fname) + text : chosen;
}

}  // namespace gimlet::emu

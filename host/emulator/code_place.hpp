// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gimlet::emu {

/// "tests/litmus/kernels.cu:120 (function)" for a return address of this program: the innermost
/// place outside of device/core and the emulator. Runs addr2line; without it, module and offset.
std::string code_place(const void* return_address);

}  // namespace gimlet::emu

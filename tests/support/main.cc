// SPDX-License-Identifier: Apache-2.0
#if GIMLET_CATCH2_MAJOR >= 3
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>

int main(int argc, char** argv) {
    // A crash must not swallow what a test has printed, its seed above all.
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    return Catch::Session().run(argc, argv);
}

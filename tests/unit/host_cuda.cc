// SPDX-License-Identifier: Apache-2.0
// What can be checked of host/cuda without a device; the rest is in host_sim.cc.
#include <cuda_runtime.h>

#include <string>
#include <type_traits>
#include <utility>

#include "host/base/fault.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/launch.hpp"
#include "host/cuda/stream.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::check_error;
using gimlet::test::contains_text;
using gimlet::test::error_of;

static_assert(!std::is_copy_constructible_v<Stream> &&
              std::is_nothrow_move_constructible_v<Stream>);
static_assert(!std::is_copy_constructible_v<Event> && std::is_nothrow_move_assignable_v<Event>);
static_assert(!std::is_copy_constructible_v<DeviceBuffer<int>>);
static_assert(std::is_nothrow_move_constructible_v<MappedBuffer<int>>);

TEST_CASE("cuda_check names the call, the error and the rank", "[host][cuda]") {
    CHECK_NOTHROW(cuda_check(cudaSuccess, "cudaFoo"));
    check_error([] { cuda_check(cudaErrorInvalidValue, "cudaFoo", 3); }, ErrorCode::cuda,
                {"cudaFoo failed", "cudaErrorInvalidValue"});
    CHECK(error_of([] { cuda_check(cudaErrorInvalidValue, "cudaFoo", 3); }).rank() == 3);
    check_error([] { cuda_check(cudaErrorMemoryAllocation, "cudaMalloc"); },
                ErrorCode::out_of_memory, {"cudaMalloc"});
    check_error([] { cuda_check(cudaErrorIllegalAddress, "k"); }, ErrorCode::cuda,
                {"context of this process is lost"});
    CHECK(cuda_error_is_sticky(cudaErrorIllegalAddress));
    CHECK(cuda_error_is_sticky(cudaErrorLaunchFailure));
    CHECK_FALSE(cuda_error_is_sticky(cudaErrorInvalidValue));
    CHECK_FALSE(cuda_error_is_sticky(cudaErrorNotReady));
    // CUDA's numbers: 809 = too many connections, 810 = ended by the MPS daemon.
    CHECK_FALSE(cuda_error_is_sticky(static_cast<cudaError_t>(809)));
    CHECK(cuda_error_is_sticky(static_cast<cudaError_t>(810)));
}

TEST_CASE("cuda_warn logs and does not throw", "[host][cuda]") {
    const LogCapture capture;
    cuda_warn(cudaSuccess, "cudaFoo", 1);
    cuda_warn(cudaErrorInvalidValue, "cudaFoo", 1);
    CHECK(capture.count(LogLevel::warn, "cudaFoo failed: cudaErrorInvalidValue") == 1);
    CHECK(capture.records().size() == 1);
}

TEST_CASE("empty objects are harmless", "[host][cuda]") {
    Stream stream;
    CHECK_FALSE(stream);
    Stream moved = std::move(stream);
    CHECK(moved.get() == nullptr);
    const Event event;
    CHECK_FALSE(event);
    DeviceBuffer<int> none(0);
    CHECK(none.get() == nullptr);
    CHECK(none.bytes() == 0);
    none.fill_bytes(1);
    none.upload({});
    const MappedBuffer<int> nothing(0);
    CHECK(nothing.host() == nullptr);
    check_error(
        [&] {
            const int one = 1;
            none.upload({&one, 1});
        },
        ErrorCode::invalid_argument, {"1 elements", "has 0"});
}

TEST_CASE("allocations that fail or overflow say how much was asked for", "[host][cuda]") {
    check_error([] { DeviceBuffer<double> b(1ull << 62, 6); }, ErrorCode::overflow,
                {"device buffer bytes"});
    {
        const FaultScope scope(FaultPoint::device_allocate, 6);
        check_error([] { DeviceBuffer<double> b(1024, 6); }, ErrorCode::out_of_memory,
                    {"cudaMalloc of 8 KiB"});
    }
    {
        const FaultScope scope(FaultPoint::host_allocate);
        check_error([] { MappedBuffer<double> b(1024, 6); }, ErrorCode::out_of_memory,
                    {"cudaHostAlloc of 8 KiB"});
    }
}

TEST_CASE("impossible launches are refused with the limit", "[host][cuda]") {
    const auto check = [](LaunchShape shape) { detail::check_shape(shape, "dispatch", 1); };
    CHECK_NOTHROW(check({1, 1, 0, Cooperative::no}));
    CHECK_NOTHROW(check({4, 1024, 0, Cooperative::yes}));
    check_error(
        [&] {
            check({0, 32, 0, Cooperative::no});
        },
        ErrorCode::invalid_argument, {"dispatch", "grid is 0"});
    check_error(
        [&] {
            check({1, 1025, 0, Cooperative::no});
        },
        ErrorCode::invalid_argument, {"dispatch", "1025", "1..1024"});
    CHECK(LaunchShape{2, 64, 128, Cooperative::yes}.text() ==
          "2 blocks x 64 threads, 128 B shared, cooperative");
}

TEST_CASE("errors of the machine come with their cure", "[host][cuda]") {
    CHECK(cuda_error_cure(cudaErrorInvalidValue).empty());
    // An MPS daemon that an earlier run left broken.
    for (const int number : {46, 805, 806, 807, 810}) {
        INFO("error " << number);
        const auto result = static_cast<cudaError_t>(number);
        CHECK_THAT(cuda_error_cure(result), contains_text("echo quit | nvidia-cuda-mps-control"));
        check_error([&] { cuda_check(result, "cudaSetDevice", 3); }, ErrorCode::cuda,
                    {"cudaSetDevice failed", "start nvidia-cuda-mps-control -d anew"});
    }
    CHECK_THAT(cuda_error_cure(static_cast<cudaError_t>(809)),
               contains_text("CUDA_DEVICE_MAX_CONNECTIONS"));
}

TEST_CASE("a GPU older than sm_90 is refused", "[host][cuda]") {
    DeviceInfo info;
    info.device = 2;
    info.name = "Old GPU";
    info.compute_capability = 80;
    CHECK_THAT(device_fault(info), contains_text("device 2 (Old GPU) has compute capability 8.0"));
    CHECK_THAT(device_fault(info), contains_text("need 9.0"));
    info.compute_capability = 90;
    CHECK(device_fault(info).empty());
    info.compute_capability = 100;
    CHECK(device_fault(info).empty());
}

// SPDX-License-Identifier: Apache-2.0
// The entry: ranks that found each other become a Runtime, and a Runtime makes Exchanges.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/bootstrap/bootstrap.hpp"
#include "host/cuda/device_info.hpp"
#include "host/nccl/communicator.hpp"
#include "host/nccl/topology.hpp"
#include "runtime/config.hpp"
#include "runtime/health.hpp"

namespace gimlet {

class Exchange;
struct Leftovers;
struct Plan;
struct RuntimeCore;

/// One rank's membership. Collective functions come in the same order on every rank; each rank's
/// object serves one host thread at a time, with the device current that was current at creation.
///
/// Life: `close()` is collective and the normal end, after every Exchange is closed. `abort()` is
/// local, for a rank that has given up. The destructor never blocks on peers and never throws.
class Runtime {
  public:
    /// Collective over `bootstrap`, on the current device. Makes a communicator, queries the
    /// topology, and sets up the barrier. If it fails on one rank, it fails on all, and nothing
    /// remains. A config that is faulty on one rank is Error(invalid_argument) there, and at once
    /// Error(peer_failed) with rank and fault on the others.
    static std::unique_ptr<Runtime> create(std::shared_ptr<Bootstrap> bootstrap,
                                           const RuntimeConfig& config = {});

    /// The same on a communicator of the caller's, who keeps it alive until close() has returned on
    /// all ranks.
    static std::unique_ptr<Runtime> adopt(ncclComm_t comm, std::shared_ptr<Bootstrap> bootstrap,
                                          const RuntimeConfig& config = {});

    /// The same with a config that `read` returns, or raises for: if it raises on one rank, all
    /// ranks hear at once which one that is, and why.
    static std::unique_ptr<Runtime> create_from(std::shared_ptr<Bootstrap> bootstrap,
                                                const std::function<RuntimeConfig()>& read);
    static std::unique_ptr<Runtime> adopt_from(ncclComm_t comm,
                                               std::shared_ptr<Bootstrap> bootstrap,
                                               const std::function<RuntimeConfig()>& read);

    ~Runtime();
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    int rank() const noexcept;
    int size() const noexcept;
    Bootstrap& bootstrap() const;
    Communicator& communicator() const;
    const Topology& topology() const noexcept;
    const DeviceInfo& device() const noexcept;
    std::uint64_t deadline_ns() const noexcept;

    /// Collective. See Exchange::create() and Exchange::create_from().
    std::unique_ptr<Exchange> create_exchange(const MoeConfig& config);
    std::unique_ptr<Exchange> create_exchange_from(const std::function<MoeConfig()>& read);

    /// Local. What create_exchange() would plan here, by make_plan(): sizes before anything is
    /// allocated. NCCL may then grant fewer GIN contexts than asked for.
    Plan plan_exchange(const MoeConfig& config) const;

    /// Collective on the device: queues a barrier of all ranks on `stream`, `repeat_count` times
    /// (>= 1). Work queued before it on any rank happens before work queued after it on any other,
    /// LSA stores and GIN puts of the barrier's contexts included. Raises the report of an earlier
    /// barrier that failed, until recover(). `deadline_ns` replaces the Runtime's for this call, 0
    /// = none. May be captured. All ranks fail at the first expiry, and when one refuses its own
    /// arguments (Error(peer_failed) on the others), outside of a capture.
    void barrier(cudaStream_t stream, std::int32_t repeat_count = 1,
                 std::optional<std::uint64_t> deadline_ns = std::nullopt);

    /// Local. Blocks until the work on `stream` is done; raises if a barrier failed or NCCL reports
    /// a fault.
    void synchronize(cudaStream_t stream);

    /// Barriers queued so far.
    std::uint64_t barrier_count() const noexcept;
    Health health() const;

    /// Collective. Makes the barrier and all open Exchanges usable again after a failure on any
    /// rank: see Exchange::recover(). Returns what the ranks said about the first failure. Ranks
    /// with different Exchanges open hear it at once (Error(config_mismatch) with their numbers,
    /// see Exchange::number()); nothing has changed then.
    GroupReport recover();

    /// Collective over the ranks that are left, which all name the same ones (checked). Takes
    /// `ranks` out for good, then recovers as recover() does: from now on nothing is sent to them
    /// and nobody waits for them. Their experts count as masked, their tokens are missing;
    /// Received::partial, StepCounts::partial and RoutingView::dropped say so. Ranks to be excluded
    /// are dead or have stopped: one whose kernels still run may write into the others' buffers.
    /// A hybrid Exchange goes on in direct mode, in the same window: Exchange::plan() is then
    /// another one and says why, addresses of rows stay, sums are those of direct mode, and graphs
    /// that were captured before are refused (Error(invalid_usage)).
    /// `survivors` is a bootstrap of those that are left, in the old order; null = the Runtime's
    /// own makes one (Error(not_supported) if it cannot, and while a hybrid Exchange without
    /// Plan::fallback is open).
    /// Afterwards no new Exchange can be created, and close() aborts the communicator. Naming no
    /// rank that is left is the same as recover(). Ranks that name different ones hear it at once
    /// (Error(config_mismatch) with both lists), and so do all if one refuses its arguments
    /// (Error(peer_failed) with rank and reason); nothing has changed then. Errors go on naming
    /// ranks by their world rank.
    GroupReport exclude(std::span<const int> ranks, std::shared_ptr<Bootstrap> survivors = nullptr);
    /// For callers that check arguments themselves: instead of the call that all other ranks make,
    /// which fails there with `fault`. Raises it here.
    [[noreturn]] void refuse_recover(const Error& fault);
    [[noreturn]] void refuse_exclude(const Error& fault);
    /// World ranks that are left, ascending.
    const std::vector<int>& live_ranks() const noexcept;

    /// Collective; a second call does nothing. Error(invalid_usage) with their number if Exchanges
    /// are open, and at once Error(peer_failed) on the other ranks. If a rank is lost after the
    /// device has been found idle, the Runtime is aborted, and the error says so.
    void close();
    /// Local; never throws, never waits, whatever runs on the device. Memory and NCCL's
    /// communicator stay as they are. They are freed, once the device is idle, by the next create()
    /// or adopt() on it, by close() of any other Runtime there, or by reclaim().
    void abort() noexcept;
    /// Local, for any thread. Waits for the current device, for ever if a step without a deadline
    /// hangs there, and frees what closed and aborted Runtimes have left on it, with their
    /// Exchanges, and what destroyed Routings have left. Returns the number of objects. An aborted
    /// Exchange of an open Runtime is freed by that Runtime: see Exchange::abort().
    static int reclaim();

    /// For objects made on this Runtime.
    const std::shared_ptr<RuntimeCore>& core() const noexcept { return core_; }

  private:
    explicit Runtime(std::shared_ptr<RuntimeCore> core);
    static std::unique_ptr<Runtime> finish(std::shared_ptr<RuntimeCore> core,
                                           const RuntimeConfig& config);
    void require_open() const;
    [[noreturn]] void refuse_barrier(const Error& fault, cudaStream_t stream);
    void check_excludable(std::span<const int> ranks) const;
    void check_exclusion(const std::vector<int>& left, const Bootstrap* survivors) const;
    std::unique_ptr<Bootstrap> meet_survivors(const std::vector<int>& left, Bootstrap* given) const;
    /// Collective: recover() once all ranks are in it.
    GroupReport recover_all();
    void keep_health() noexcept;

    std::shared_ptr<RuntimeCore> core_;
    Health last_health_;                    // of the end
    std::unique_ptr<Leftovers> leftovers_;  // empty: abort() must not allocate
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// An NCCL communicator, made here or borrowed.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet {

/// GIN backend. `other` = one that this library does not know by name; it serves all the same.
enum class GinType { none, proxy, gdaki, gpi, other };
const char* gin_type_name(GinType type) noexcept;

/// What NCCL says about a communicator.
struct CommunicatorProperties {
    int rank = 0;
    int size = 1;
    int device = 0;    ///< CUDA ordinal
    int lsa_rank = 0;  ///< index in this rank's LSA team
    int lsa_size = 1;
    int lsa_team_count = 1;
    bool symmetric_memory = false;  ///< windows and device communicators work
    bool multimem = false;
    GinType gin_type = GinType::none;         ///< reaches all ranks
    GinType railed_gin_type = GinType::none;  ///< reaches the ranks with the same LSA index
};

struct CommunicatorConfig {
    /// Upper bound of blocks that NCCL's own kernels use; 0 = NCCL's choice.
    int max_cta_count = 0;
    /// Shown in NCCL's logs; may be empty.
    std::string name;
};

enum class Ownership { owned, adopted };

class CommunicatorState;

/// A communicator with the bootstrap of the same ranks. Windows and device communicators are made
/// on it and keep a reference to its state, so they may be destroyed in any order; a window that
/// outlives the communicator only frees its memory.
///
/// Life: `close()` is collective and the normal end. `abort()` is local, for a rank that has given
/// up. The destructor never throws; if neither was called it aborts an owned communicator and
/// warns. An adopted communicator is never finalised, destroyed or aborted here.
class Communicator {
  public:
    /// Collective over `bootstrap`, on the current device. Checks NCCL's version first. If it fails
    /// on one rank, it fails on all, and nothing remains.
    static std::unique_ptr<Communicator> create(std::shared_ptr<Bootstrap> bootstrap,
                                                const CommunicatorConfig& config = {});

    /// Collective. Borrows `comm`, whose ranks must be numbered as in `bootstrap` (checked). The
    /// lender keeps it alive until close() has returned on all ranks. Null is
    /// Error(invalid_argument).
    static std::unique_ptr<Communicator> adopt(ncclComm_t comm,
                                               std::shared_ptr<Bootstrap> bootstrap);

    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    /// Collective. Ranks with the same `color` (>= 0) form a new, owned communicator, ordered by
    /// (key, rank); kNoColor takes part in the call and gets null. Nothing is shared with the
    /// parent, because NCCL tears GIN down for all when one sharer is destroyed.
    std::unique_ptr<Communicator> split(int color, int key, const CommunicatorConfig& config = {});

    int rank() const noexcept;
    int size() const noexcept;
    int device() const noexcept;
    Ownership ownership() const noexcept;
    Bootstrap& bootstrap() const noexcept;
    const CommunicatorProperties& properties() const noexcept;

    /// Raises Error(closed) after close() or abort().
    ncclComm_t handle() const;
    bool is_open() const noexcept;

    /// Raises if NCCL reports a failure that happened since (a dead proxy thread, a lost peer).
    void check_async_error() const;

    /// Collective; a second call does nothing. Windows and device communicators must be closed
    /// before (Error(invalid_usage) with their number). Owned: finalise and destroy. Adopted: let
    /// go.
    void close();

    /// Local; never throws. Ends an owned communicator without the others; lets an adopted one go.
    void abort() noexcept;
    /// abort() in two halves, for while kernels use NCCL's memory: from the first on the
    /// communicator is closed to its users; the second, or the destructor, tells NCCL.
    void begin_abort() noexcept;
    void finish_abort() noexcept;

    /// For objects made on this communicator.
    const std::shared_ptr<CommunicatorState>& state() const noexcept { return state_; }

  private:
    explicit Communicator(std::shared_ptr<CommunicatorState> state);
    std::shared_ptr<CommunicatorState> state_;
};

}  // namespace gimlet

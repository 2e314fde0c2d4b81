// SPDX-License-Identifier: Apache-2.0
// Engine for ranks of other hosts: UCX active messages over whatever UCX finds (TCP, shared memory,
// ...). libucp is loaded at run time; a build without its headers has this engine only by name.
#pragma once

#include <cstdint>
#include <memory>

#include "host/rma_plugin/channel.hpp"
#include "host/rma_plugin/link.hpp"

namespace gimlet::rma {

/// One endpoint's UCX worker, shared by its links.
class UcxEngine {
  public:
    virtual ~UcxEngine() = default;
    /// Exchanges addresses over `channel`, which then announces memory. Both ends call it.
    virtual std::unique_ptr<Link> make_link(int peer, Channel channel,
                                            std::uint64_t deadline_ns) = 0;
};

/// Raises Error(not_supported) if UCX cannot be used here.
std::shared_ptr<UcxEngine> make_ucx_engine(int rank);

}  // namespace gimlet::rma

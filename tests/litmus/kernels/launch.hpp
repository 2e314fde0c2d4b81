// SPDX-License-Identifier: Apache-2.0
//
// One kernel for each mechanism, in a file of its own.
#pragma once

#include "tests/litmus/programs.hpp"

namespace gimlet::litmus {

cudaError_t launch_gin_order(const LitmusArgs& args, cudaStream_t stream);
cudaError_t launch_gin_completion(const LitmusArgs& args, cudaStream_t stream);
cudaError_t launch_gin_signals(const LitmusArgs& args, cudaStream_t stream);
cudaError_t launch_lsa(const LitmusArgs& args, cudaStream_t stream);
cudaError_t launch_bulk(const LitmusArgs& args, cudaStream_t stream);

}  // namespace gimlet::litmus

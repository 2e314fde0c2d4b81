// SPDX-License-Identifier: Apache-2.0
#include "tests/litmus/kernels/launch.hpp"

namespace gimlet::litmus {

cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream) {
    using Id = ProgramId;
    if (args.program <= Id::put_value) return launch_gin_order(args, stream);
    if (args.program <= Id::loop_back) return launch_gin_completion(args, stream);
    if (args.program <= Id::high_signal_id) return launch_gin_signals(args, stream);
    if (args.program <= Id::lsa_bulk_load_unfenced) return launch_bulk(args, stream);
    return launch_lsa(args, stream);
}

}  // namespace gimlet::litmus

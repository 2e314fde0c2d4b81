// SPDX-License-Identifier: Apache-2.0
// A case: something that all ranks do together, and what it says about the result.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/bootstrap/bootstrap.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::mpi_tests {

/// Ends a case as skipped. Every rank must come to the same conclusion.
struct Skip {
    std::string reason;
};

/// How much a case repeats: `quick` for slow machines and many processes.
enum class Effort { quick, full };

/// What a case gets. A failed expectation is noted and the case goes on, so that ranks stay in
/// step; an exception that leaves a case ends the whole run.
class CaseContext {
  public:
    CaseContext(std::shared_ptr<Bootstrap> bootstrap, Runtime* runtime, Effort effort)
        : bootstrap_(std::move(bootstrap)), runtime_(*runtime), effort_(effort) {}

    int rank() const { return bootstrap_->rank(); }
    int size() const { return bootstrap_->size(); }
    Bootstrap& bootstrap() const { return *bootstrap_; }
    const std::shared_ptr<Bootstrap>& shared_bootstrap() const { return bootstrap_; }
    /// Of all ranks; shared by the cases, which leave it usable.
    Runtime& runtime() const { return runtime_; }
    int repeats(int full, int quick) const { return effort_ == Effort::full ? full : quick; }

    /// Notes a failure unless `good`.
    void expect(bool good, const std::string& what) {
        if (!good && failures_.size() < 8)
            failures_.push_back(fmt::format("rank {}: {}", rank(), what));
    }
    /// For functions that describe the first difference, or return nothing.
    void expect_same(const std::string& difference, const std::string& where) {
        expect(difference.empty(), where + ": " + difference);
    }
    /// Expects `body` to raise an Error of this code whose text contains all `parts`.
    template <typename Body>
    void expect_error(ErrorCode code, const std::vector<std::string>& parts, Body body) {
        try {
            body();
            expect(false, fmt::format("no error, expected {}", error_code_name(code)));
        } catch (const Error& error) {
            expect(error.code() == code,
                   fmt::format("code {}, expected {}: {}", error_code_name(error.code()),
                               error_code_name(code), error.what()));
            for (const auto& part : parts) {
                expect(std::string(error.what()).find(part) != std::string::npos,
                       fmt::format("'{}' is missing in: {}", part, error.what()));
            }
        }
    }
    const std::vector<std::string>& failures() const { return failures_; }

  private:
    std::shared_ptr<Bootstrap> bootstrap_;
    Runtime& runtime_;
    Effort effort_;
    std::vector<std::string> failures_;
};

struct Case {
    std::string name;  ///< "group/what"
    int least_ranks = 1;
    std::function<void(CaseContext&)> body;
};

// One function a file of cases/.
void add_communicator_cases(std::vector<Case>* cases);
void add_step_cases(std::vector<Case>* cases);
void add_hot_path_cases(std::vector<Case>* cases);
void add_hybrid_cases(std::vector<Case>* cases);
void add_stream_cases(std::vector<Case>* cases);
void add_routing_cases(std::vector<Case>* cases);
void add_graph_cases(std::vector<Case>* cases);
void add_refusal_cases(std::vector<Case>* cases);
void add_life_cases(std::vector<Case>* cases);
void add_litmus_cases(std::vector<Case>* cases);
void add_channel_cases(std::vector<Case>* cases);

}  // namespace gimlet::mpi_tests

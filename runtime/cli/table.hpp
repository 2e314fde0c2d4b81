// SPDX-License-Identifier: Apache-2.0
// Plain tables for terminals: right-aligned columns, at most 100 columns wide.
#pragma once

#include <string>
#include <vector>

namespace gimlet::cli {

class Table {
  public:
    explicit Table(std::vector<std::string> heads) : rows_{std::move(heads)} {}
    void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

    std::string text() const {
        std::vector<std::size_t> widths(rows_[0].size());
        for (const auto& row : rows_) {
            for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
                widths[i] = row[i].size() > widths[i] ? row[i].size() : widths[i];
            }
        }
        std::string out;
        for (const auto& row : rows_) {
            std::string line;
            for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
                if (i > 0) line += "  ";
                line += std::string(widths[i] - row[i].size(), ' ') + row[i];
            }
            out += line + '\n';
        }
        return out;
    }

  private:
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace gimlet::cli

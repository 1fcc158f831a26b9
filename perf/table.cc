// SPDX-License-Identifier: Apache-2.0
#include "perf/table.h"

#include <fmt/core.h>

#include "perf/words.h"

namespace af::perf {
namespace {

double bus_bandwidth(const Plan& plan, const Figure& figure, int world_size) {
  return algorithm_bandwidth(plan.shape.bytes, figure.seconds) * bus_factor(plan.kind, world_size);
}

// The time keeps about four digits, from 0.02 us to seconds.
std::string microseconds(double seconds) {
  const double us = seconds * 1e6;
  return fmt::format("{:.{}f}", us, us < 100 ? 2 : us < 1000 ? 1 : 0);
}

std::string format_figure(const Plan& plan, const Figure& figure, int world_size) {
  const bool checked = plan.check && plan.kind != OperationKind::barrier;
  return fmt::format("  {:>7}  {:>6.2f}  {:>6.2f}  {:>6}", microseconds(figure.seconds),
                     algorithm_bandwidth(plan.shape.bytes, figure.seconds),
                     bus_bandwidth(plan, figure, world_size),
                     checked ? std::to_string(figure.wrong) : "N/A");
}

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter;
}

}  // namespace

std::string header(OperationKind kind) {
  return fmt::format(
      "# {}\n"
      "#{:57}{:^33}{:^33}\n"
      "#{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>8}  {:>6}  {:>6}  {:>6}   {:>7}  {:>6}  {:>6}  "
      "{:>6}\n"
      "#{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>8}  {:>6}  {:>6}  {:>6}   {:>7}  {:>6}  {:>6}",
      operation_name(kind), "", "out-of-place", "in-place", "size", "count", "type", "redop",
      "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "(B)",
      "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
}

std::string format_row(const Plan& plan, const Row& row, int world_size) {
  const bool rooted = plan.kind == OperationKind::broadcast;
  return fmt::format(
      " {:>12}  {:>12}  {:>8}  {:>6}  {:>6} {} {}", plan.shape.bytes, plan.shape.count,
      column_type(plan.type), reduces(plan.kind) ? name_of(plan.op) : "none",
      rooted ? std::to_string(plan.root) : "-1", format_figure(plan, row.out_of_place, world_size),
      format_figure(plan, row.in_place, world_size));
}

void Summary::add(const Plan& plan, const Row& row, int world_size) {
  wrong_ += row.out_of_place.wrong + row.in_place.wrong;
  bandwidth_ += bus_bandwidth(plan, row.out_of_place, world_size) +
                bus_bandwidth(plan, row.in_place, world_size);
  figures_ += 2;
}

std::string Summary::text() const {
  return fmt::format("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g}", wrong_,
                     wrong_ == 0 ? "OK" : "FAILED", figures_ ? bandwidth_ / figures_ : 0.0);
}

}  // namespace af::perf

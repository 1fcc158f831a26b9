// SPDX-License-Identifier: Apache-2.0
// The Bootstrap over TCP: for sites without PMIx and for steps that a front has started.
//
// The hub is the front where there is one. Without it (a direct srun) it is the agent of task 0,
// which says where it listens in a rendezvous file in a directory that all nodes see.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "launcher/authenticated_peer.h"
#include "launcher/bootstrap.h"

namespace af {

inline constexpr std::chrono::seconds kBootstrapPatience{60};

// Asks a hub that is there already.
std::unique_ptr<Bootstrap> make_tcp_bootstrap(int task, const PeerAddress& hub,
                                              const std::string& secret);

// Task 0 of a step without a front: is the hub itself, for `tasks` tasks, and announces it in
// `file` under `my_address` once all_gather begins; removes the file when all have come.
std::unique_ptr<Bootstrap> make_tcp_bootstrap_hub(int tasks, const std::string& my_address,
                                                  const std::string& secret,
                                                  const std::filesystem::path& file,
                                                  const std::filesystem::path& run_directory);

// What a rendezvous file says.
struct Rendezvous {
  PeerAddress hub;
  std::filesystem::path run_directory;
};
// Waits for the file. Throws Error when `patience` is over.
Rendezvous await_rendezvous(const std::filesystem::path& file, std::chrono::milliseconds patience);

}  // namespace af

// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "collectives/local/identity.h"

namespace af::local {
namespace {

using nlohmann::json;

// Raised when two builds of af could misread each other's segment or wire format.
constexpr int kProtocol = 1;

class Meeting {
 public:
  explicit Meeting(const Options& options)
      : options_(options),
        deadline_(Clock::now() + options.timeout),
        prefix_("af/" + options.name + "/" + std::to_string(options.generation) + "/") {}

  Membership run() {
    const std::string unix_name = "af-" + random_hex(24);
    const UniqueFd unix_listener = listen_unix(unix_name);
    const TcpListener tcp_listener = listen_tcp();
    if (options_.rank == 0) {
      set("token", random_hex(2 * Hello::kTokenHalf));
    }
    publish_self(unix_name, tcp_listener.port);
    read_others();
    verify_neighbours();
    Membership members;
    members.topology = make_topology(identities_);
    for (const json& rank : ranks_) {
      members.places.push_back(rank.at("host").get<std::string>() + ", pid " +
                               std::to_string(rank.at("pid").get<int>()));
    }
    Handshake handshake(members.topology, options_.rank, get("token", 0));
    members.links = handshake.run(unix_listener.get(), tcp_listener.fd.get(), addresses_, deadline_,
                                  options_.timeout, options_.cancel.get());
    share_segment(members);
    return members;
  }

 private:
  void publish_self(const std::string& unix_name, int port) {
    const char* master = std::getenv("MASTER_ADDR");
    json self;
    self["protocol"] = kProtocol;
    self["world_size"] = options_.world_size;
    self["node"] = options_.node_identity.empty() ? node_identity()
                                                  : node_identity() + "/" + options_.node_identity;
    self["unix"] = unix_name;
    self["host"] = host_name();
    self["address"] =
        options_.address.empty() ? own_address(master == nullptr ? "" : master) : options_.address;
    self["port"] = port;
    self["pid"] = int(getpid());
    set("rank/" + std::to_string(options_.rank), self.dump());
  }

  void read_others() {
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const json other = parse(get("rank/" + std::to_string(rank), rank), rank);
      if (other.value("protocol", 0) != kProtocol) {
        throw CommunicatorError(CommunicatorError::Kind::system,
                                "rank " + std::to_string(rank) +
                                    " runs another version of af: start all ranks with the same "
                                    "libaf_collectives.so",
                                {rank});
      }
      if (other.at("world_size") != options_.world_size) {
        throw CommunicatorError(CommunicatorError::Kind::mismatch,
                                "rank " + std::to_string(rank) + " came for a world of " +
                                    std::to_string(other.at("world_size").get<int>()) +
                                    ", this rank for one of " + std::to_string(options_.world_size),
                                {rank});
      }
      ranks_.push_back(other);
      identities_.push_back(other.at("node").get<std::string>());
      addresses_.push_back({other.at("unix").get<std::string>(),
                            other.at("address").get<std::string>(), other.at("port").get<int>()});
    }
  }

  // Identities say that memory can be shared; a connection proves it. A rank that cannot reach a
  // neighbour declares itself a node of its own, and all ranks hear of it.
  void verify_neighbours() {
    const int self = options_.rank;
    const Topology claimed = make_topology(identities_);
    if (claimed.nodes[claimed.node_of[self]].size() > 1) {
      bool reachable = true;
      for (int mate : claimed.nodes[claimed.node_of[self]]) {
        if (mate != self && !connect_unix(addresses_[mate].unix_name)) reachable = false;
      }
      set("reaches/" + std::to_string(self), reachable ? "yes" : "no");
    }
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (claimed.nodes[claimed.node_of[rank]].size() == 1) continue;
      if (get("reaches/" + std::to_string(rank), rank) != "yes") {
        identities_[rank] += "/alone-" + std::to_string(rank);
      }
    }
  }

  void share_segment(Membership& members) {
    const auto& node = members.topology.nodes[members.topology.node_of[options_.rank]];
    // A rank that is alone on its node has a segment too: the algorithms need no case for it.
    const std::size_t node_count = members.topology.nodes.size();
    if (options_.rank == node.front()) {
      members.segment =
          Segment::create(int(node.size()), stage_bytes(node_count), stage_count(node_count));
      for (const Link& link : members.links) {
        if (link.same_node) send_fd(link.data.get(), members.segment.fd());
      }
      return;
    }
    for (const Link& link : members.links) {
      if (link.rank != node.front()) continue;
      members.segment = Segment::attach(await_fd(link));
    }
  }

  UniqueFd await_fd(const Link& link) {
    while (true) {
      UniqueFd fd = receive_fd(link.data.get());
      if (fd) return fd;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
      if (left.count() <= 0) {
        throw CommunicatorError(
            CommunicatorError::Kind::timeout,
            "rank " + std::to_string(link.rank) + " did not share its memory in time", {link.rank});
      }
      check_cancel(options_.cancel.get());
      pollfd polled[] = {{link.data.get(), POLLIN, 0},
                         {event_of(options_.cancel.get()), POLLIN, 0}};
      poll(polled, 2, int(left.count()));
    }
  }

  static json parse(const std::string& text, int rank) {
    json value = json::parse(text, nullptr, false);
    if (!value.is_object()) {
      throw CommunicatorError(CommunicatorError::Kind::store,
                              "the store's entry of rank " + std::to_string(rank) + " is broken",
                              {rank});
    }
    return value;
  }

  void set(const std::string& key, const std::string& value) {
    options_.store->set(prefix_ + key, value);
  }

  // `rank`: who is to set the key.
  std::string get(const std::string& key, int rank) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    try {
      return options_.store->get(prefix_ + key, std::max(left, std::chrono::milliseconds(1)));
    } catch (const CommunicatorError& error) {
      if (error.kind() != CommunicatorError::Kind::timeout) throw;
      const auto ranks = absent_from(rank);
      throw CommunicatorError(CommunicatorError::Kind::timeout,
                              list_ranks(ranks) + " did not come to the world \"" + options_.name +
                                  "\" (generation " + std::to_string(options_.generation) +
                                  ") within " + std::to_string(options_.timeout.count()) + " ms",
                              ranks);
    }
  }

  // `first` did not come in time: who else?
  std::vector<int> absent_from(int first) {
    std::vector<int> ranks = {first};
    for (int rank = first + 1; rank < options_.world_size; ++rank) {
      try {
        options_.store->get(prefix_ + "rank/" + std::to_string(rank), std::chrono::milliseconds(1));
      } catch (const CommunicatorError&) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  const Options& options_;
  const Clock::time_point deadline_;
  // One store may serve several communicators and, outside af-launch, several generations.
  const std::string prefix_;
  std::vector<json> ranks_;
  std::vector<std::string> identities_;
  std::vector<PeerAddress> addresses_;
};

}  // namespace

Membership meet(const Options& options) {
  try {
    return Meeting(options).run();
  } catch (const nlohmann::json::exception& error) {
    throw CommunicatorError(CommunicatorError::Kind::store,
                            std::string("an entry of the store is broken: ") + error.what());
  }
}

std::size_t stage_bytes(std::size_t node_count) {
  // Inside a node a chunk should stay in the second-level cache; between nodes each chunk costs two
  // round trips, which only a large one pays back.
  return node_count == 1 ? 256 * 1024 : 4 * 1024 * 1024;
}

int stage_count(std::size_t node_count) {
  // Deep enough that a rank which loses its core for a while does not stop the others at once.
  return node_count == 1 ? 8 : 3;
}

}  // namespace af::local

// SPDX-License-Identifier: Apache-2.0
#include "launcher/network_address.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af {
namespace {

const InterfaceAddress kLoopback{"lo", "127.0.0.1", false, true, true};
const InterfaceAddress kLoopback6{"lo", "::1", true, true, true};
const InterfaceAddress kDocker{"docker0", "172.17.0.1", false, false, true};
const InterfaceAddress kEthernet{"eth0", "10.1.0.7", false, false, true};
const InterfaceAddress kEthernet6{"eth0", "2001:db8::7", true, false, true};
const InterfaceAddress kLinkLocal6{"eth1", "fe80::7", true, false, true};
const InterfaceAddress kFabric{"ib0", "192.168.5.7", false, false, true};
const InterfaceAddress kDown{"eth2", "10.9.0.7", false, false, false};

struct Row {
  const char* what;
  std::vector<InterfaceAddress> all;
  const char* routed;
  const char* wanted;
  const char* interface;
  const char* address;
};

class ChooseAddress : public testing::TestWithParam<Row> {};

TEST_P(ChooseAddress, Table) {
  const Row& row = GetParam();
  const NetworkAddress chosen = choose_address(row.all, row.routed, row.wanted);
  EXPECT_EQ(chosen.interface, row.interface) << row.what;
  EXPECT_EQ(chosen.address, row.address) << row.what;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ChooseAddress,
    testing::Values(
        Row{"the routed one",
            {kLoopback, kDocker, kEthernet, kFabric},
            "192.168.5.7",
            "",
            "ib0",
            "192.168.5.7"},
        Row{"B45: host name is loopback",
            {kLoopback, kDocker, kEthernet},
            "127.0.1.1",
            "",
            "eth0",
            "10.1.0.7"},
        Row{"no route known", {kDocker, kLoopback, kEthernet}, "", "", "eth0", "10.1.0.7"},
        Row{"IPv4 first", {kEthernet6, kEthernet}, "", "", "eth0", "10.1.0.7"},
        Row{"IPv6 alone", {kLoopback6, kLinkLocal6, kEthernet6}, "", "", "eth0", "2001:db8::7"},
        Row{"a bridge before nothing", {kLoopback, kDocker}, "", "", "docker0", "172.17.0.1"},
        Row{"what is down is not there", {kLoopback, kDown}, "10.9.0.7", "", "lo", "127.0.0.1"},
        Row{"the person's", {kEthernet, kFabric}, "10.1.0.7", "ib0", "ib0", "192.168.5.7"},
        Row{"the person's loopback", {kLoopback, kEthernet}, "10.1.0.7", "lo", "lo", "127.0.0.1"},
        Row{"alone", {kLoopback}, "", "", "lo", "127.0.0.1"},
        Row{"nothing at all", {}, "", "", "lo", "127.0.0.1"}));

TEST(ChooseAddressError, UnknownInterfaceIsNamed) {
  try {
    choose_address({kEthernet}, "", "ib7");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ib7"), std::string::npos);
  }
}

TEST(SourceAddress, OfThisMachine) {
  EXPECT_EQ(source_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(source_address_towards("no-such-host.invalid"), "");
}

TEST(RoutableAddress, IsOneOfThisMachine) {
  const NetworkAddress found = routable_address({"no-such-host.invalid", "127.0.0.1"});
  bool other_than_loopback = false, listed = false;
  for (const InterfaceAddress& entry : interface_addresses()) {
    other_than_loopback |= entry.up && !entry.loopback;
    listed |= entry.address == found.address && entry.interface == found.interface;
  }
  EXPECT_TRUE(listed) << found.interface << " " << found.address;
  EXPECT_EQ(found.address.rfind("127.", 0) != 0, other_than_loopback) << found.address;
}

}  // namespace
}  // namespace af

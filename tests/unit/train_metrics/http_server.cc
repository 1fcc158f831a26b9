// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/train_metrics/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace af::test {
namespace {

// False: the end, or the server's.
bool wait_for_input(int fd, int wake) {
  pollfd fds[2] = {{fd, POLLIN, 0}, {wake, POLLIN, 0}};
  return ::poll(fds, 2, 20'000) > 0 && fds[1].revents == 0;
}

bool read_some(int fd, int wake, std::string& to) {
  if (!wait_for_input(fd, wake)) return false;
  char buffer[65536];
  const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
  if (n > 0) to.append(buffer, static_cast<std::size_t>(n));
  return n > 0;
}

bool read_request(int fd, int wake, std::string& pending, HttpRequest& request) {
  std::size_t end = 0;
  while ((end = pending.find("\r\n\r\n")) == std::string::npos)
    if (!read_some(fd, wake, pending)) return false;
  std::istringstream head(pending.substr(0, end));
  std::string line;
  std::getline(head, line);
  std::istringstream(line) >> request.method >> request.target;
  while (std::getline(head, line)) {
    const auto colon = line.find(':');
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    std::string value = line.substr(colon + 2);
    while (!value.empty() && value.back() == '\r') value.pop_back();
    request.headers[name] = value;
  }
  pending.erase(0, end + 4);
  const std::size_t length =
      request.headers.contains("content-length")
          ? static_cast<std::size_t>(std::stoul(request.headers.at("content-length")))
          : 0;
  while (pending.size() < length)
    if (!read_some(fd, wake, pending)) return false;
  request.body = pending.substr(0, length);
  pending.erase(0, length);
  return true;
}

}  // namespace

HttpServer::HttpServer(std::function<HttpResponse(const HttpRequest&)> answer, uint16_t port)
    : answer_(std::move(answer)),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  const int on = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), generic, length) != 0 || ::listen(listener_.get(), 8) != 0 ||
      ::getsockname(listener_.get(), generic, &length) != 0)
    std::abort();
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

HttpServer::~HttpServer() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void HttpServer::run() {
  std::vector<std::thread> peers;
  while (true) {
    pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) break;
    UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer) peers.emplace_back([this, fd = std::move(peer)] { serve(fd.get()); });
  }
  for (std::thread& peer : peers) peer.join();
}

void HttpServer::serve(int fd) {
  std::string pending;
  for (;;) {
    HttpRequest request;
    if (!read_request(fd, wake_.get(), pending, request)) return;
    const HttpResponse response = answer_(request);
    if (response.break_off) return;
    if (response.hang) {
      while (read_some(fd, wake_.get(), pending)) {
      }
      return;
    }
    const std::string text = "HTTP/1.1 " + std::to_string(response.status) +
                             " X\r\nContent-Type: application/json\r\n" + response.headers +
                             "Content-Length: " + std::to_string(response.body.size()) +
                             "\r\n\r\n" + response.body;
    if (::send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
  }
}

}  // namespace af::test

// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 server on the loopback, a thread for each connection, for what a real MLflow
// server cannot be made to do: hang, break off, answer nonsense.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/unique_fd.h"

namespace af::test {

struct HttpRequest {
  std::string method;
  std::string target;                          // path and query
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body = "{}";
  std::string headers;     // further lines, each with its \r\n
  bool break_off = false;  // closes without an answer
  bool hang = false;       // never answers, until the client goes
};

class HttpServer {
 public:
  // On a free port, or on `port`. `answer` is called on the server's
  // threads.
  explicit HttpServer(std::function<HttpResponse(const HttpRequest&)> answer, uint16_t port = 0);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const { return port_; }
  std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void run();
  void serve(int fd);

  std::function<HttpResponse(const HttpRequest&)> answer_;
  UniqueFd listener_;
  UniqueFd wake_;  // an eventfd: the end
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace af::test

// SPDX-License-Identifier: Apache-2.0
// What is reported goes to an MLflow server, over its REST API.
//
//   callbacks.add(af::train::mlflow_logger_from_environment());   // MLFLOW_TRACKING_URI=https://…
//
// A thread of rank 0 writes every value into a spool on disk first and sends it from there, in
// batches. A server that is slow, away, or wrong costs the training nothing: what it has not taken
// stays in the spool and is sent when it is back, if need be by the next process that is given the
// same spool. Values are sent with the time at which they were reported, so that a batch that is
// sent twice (because the answer was lost) changes nothing on servers with an SQL store.
//
// What the server refuses for good (a parameter that had another value) is said and left out.
// docs/metrics.md has the spool's format and what is said when.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "af/export.h"
#include "af/train/callback.h"

namespace af::train {

struct MlflowOptions {
  std::string tracking_uri;  // http:// or https://
  // The run to write to. "": one of its own, made in `experiment` when the server is there, and
  // remembered in the spool: a training that is started again goes on in it.
  std::string run_id;
  std::string experiment_id;  // counts before `experiment`
  std::string experiment = "Default";
  std::string run_name;

  std::string token;  // a bearer's; counts before username and password
  std::string username;
  std::string password;
  std::string ca_file;        // certificates to trust, in place of the system's
  bool insecure_tls = false;  // takes any certificate

  std::map<std::string, std::string> params;
  std::map<std::string, std::string> tags;

  // A directory for this run alone, on a disk that the next rank 0 sees too.
  std::filesystem::path spool;

  std::chrono::milliseconds gather = std::chrono::seconds(1);  // values for so long, then a batch
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds request_timeout = std::chrono::seconds(30);
  std::chrono::milliseconds retry = std::chrono::seconds(1);  // doubled up to most_retry
  std::chrono::milliseconds most_retry = std::chrono::seconds(60);
  // How long the end of the training waits for what is not sent yet.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

// MLflow's own variables: MLFLOW_TRACKING_URI, _RUN_ID, _EXPERIMENT_ID, _EXPERIMENT_NAME, _RUN_NAME
// (else AF_RUN_ID), _TRACKING_TOKEN, _TRACKING_USERNAME, _TRACKING_PASSWORD,
// _TRACKING_SERVER_CERT_PATH, _TRACKING_INSECURE_TLS. The spool is in AF_RUN_DIR/mlflow, without
// af-launch in a new directory below mlflow-spool.
AF_PUBLIC MlflowOptions mlflow_options_from_environment();

AF_PUBLIC std::shared_ptr<Callback> mlflow_logger(MlflowOptions options);
// Nothing if MLFLOW_TRACKING_URI is not set.
AF_PUBLIC std::shared_ptr<Callback> mlflow_logger_from_environment();

}  // namespace af::train

// A job's main on a worker: the executor's side of the socket that the worker daemon passed as an inherited descriptor.
//
//   hello ─▶ welcome          settings, slots, where blocks and the record cursors lie
//   main: Submit ─▶ AtAction  from now on this process serves tasks of that action ... PublishAction ─▶ Wait returns
//         Once ─▶ AtOnce      PublishOnce ─▶ the value; ComputeOnce (the driver only) ─▶ compute, OnceComputed
//         end of main ─▶ MainReturned, then tasks are served until the daemon says stop
//
// One thread reads the socket and hands tasks to the TaskRunner; task threads and main send. When the socket closes the process ends at
// once: an executor without its daemon could only do work that nobody will count.
//
// Thread rule: Backend methods from main's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "dag/backend.h"

namespace ropewalk::job {

class ExecutorBackend final : public dag::Backend {
 public:
  // Says hello on `fd` and takes up what the welcome says.
  static Result<std::unique_ptr<ExecutorBackend>> Start(int fd);
  // The process ends in ServeUntilStopped() or in the reader; a destroyed backend leaves its threads running until then.
  ~ExecutorBackend() override;

  const dag::Settings& settings() const override;
  std::unique_ptr<dag::PendingAction> Submit(dag::Action action) override;
  Result<std::string> Once(const std::string& name, const std::function<Result<std::string>()>& compute) override;
  bool in_one_process() const override { return false; }

  // Main failed by itself (no action or Once of it did): the job ends with `status` if this is the driver. Returns when the master has
  // answered, or after `timeout_ms`; -1: never. The process must end then. Any thread.
  void ReportFailure(const Status& status, int timeout_ms);
  // Main is over with `exit_code`: says so, serves tasks until told to stop, and ends the process.
  [[noreturn]] void ServeUntilStopped(int exit_code);
  // True once the master has published a failure: the job is over and its reason is known there.
  bool job_failed() const;

 private:
  struct Impl;
  class Pending;
  explicit ExecutorBackend(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ropewalk::job

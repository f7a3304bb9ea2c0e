#include <csignal>
#include <cstdio>
#include <utility>

#include <glog/logging.h>

#include "master/daemon/daemon.h"
#include "master/daemon/master.h"

namespace ropewalk::master {

Status RunMaster(MasterOptions options) {
  if (!google::IsGoogleLoggingInitialized()) {
    FLAGS_logtostderr = true;  // one writer for stderr; whoever starts us keeps it
    google::InitGoogleLogging("ropewalk-master");
  }
  rpc::EventLoop loop;
  Status end;
  loop.OnSignals({SIGTERM, SIGINT}, [&loop](int signal) {
    LOG(INFO) << "signal " << signal << ": the master stops";
    loop.Stop();
  });
  std::signal(SIGPIPE, SIG_IGN);
  std::function<void(const std::string&)> on_listening = options.on_listening;
  ASSIGN_OR_RETURN(auto master, Master::Start(loop, std::move(options), [&](const Status& status) {
                     end = status;
                     loop.Stop();
                   }));
  if (on_listening) {
    on_listening(master->address());
  } else {
    std::printf("listening on %s\n", master->address().c_str());
    std::fflush(stdout);
  }
  loop.Run();
  return end;
}

}  // namespace ropewalk::master

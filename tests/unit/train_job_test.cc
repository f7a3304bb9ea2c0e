// Job files and calls: strict keys with the nearest name, values that fit together, a call that every process understands.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "mlrunner/train/arguments.h"
#include "storage/toml_file.h"
#include "tests/unit/train_ranks.h"

namespace ropewalk::mlrunner {
namespace {

class TrainJobFile : public ::testing::Test {
 protected:
  Result<TrainArguments> Parse(const std::string& toml, std::vector<std::string> more = {}) {
    std::ofstream(path_) << toml;
    std::vector<std::string> args = {"ropewalk train", path_};
    args.insert(args.end(), more.begin(), more.end());
    return ParseTrainArguments(args, "/folder");
  }
  testing::TempFolder folder_;
  std::string path_ = folder_.path() + "/job.toml";
};

TEST_F(TrainJobFile, SaysWhatIsTrained) {
  auto parsed = Parse(
      "[model]\nkind = \"mlp\"\nhidden = [64, 32]\n[train]\nranks = 2\nbatch = 96\nepochs = 3\nbucket_bytes = \"256K\"\n"
      "[optimizer]\nlearning_rate = 0.125\nmomentum = 0\n[checkpoint]\nfolder = \"here\"\n",
      {"--set", "train.batch=64", "--ranks=4"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const TrainJob& job = parsed->job;
  EXPECT_EQ(job.model.hidden, (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(job.ranks, 4);
  EXPECT_EQ(job.batch, 64);
  EXPECT_EQ(job.epochs, 3);
  EXPECT_EQ(job.bucket_bytes, 256u << 10);
  EXPECT_EQ(job.optimizer.learning_rate, .125);
  EXPECT_EQ(job.optimizer.momentum, 0);
  EXPECT_EQ(job.checkpoint.folder, "/folder/here");
  auto files = Parse("[train]\nmetrics = \"m.jsonl\"\ntensorboard = \"t\"\ntrace = \"/abs\"\n");
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(files->job.metrics, "/folder/m.jsonl");
  EXPECT_EQ(files->job.tensorboard, "/folder/t");
  EXPECT_EQ(files->job.trace, "/abs");
}

// An executor has neither the file nor the folder: the call that it gets says everything.
TEST_F(TrainJobFile, TheCallOfAnExecutorMakesTheSameJob) {
  auto parsed = Parse("[model]\nhidden = [8]\n[train]\nseed = 18446744073709551615\n[checkpoint]\nfolder = \"c\"\nkeep = 7\n",
                      {"--master", "m:1", "--set", "train.steps=5", "--name=n"});
  // TOML's whole numbers end at 2^63 - 1.
  EXPECT_EQ(parsed.status().tag(), "SPEC03");
  parsed = Parse("[model]\nhidden = [8]\n[train]\nseed = 9223372036854775807\n[checkpoint]\nfolder = \"c\"\nkeep = 7\n",
                 {"--master", "m:1", "--set", "train.steps=5", "--name=n"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ((std::vector<std::string>(parsed->argv.begin(), parsed->argv.begin() + 4)),
            (std::vector<std::string>{"ropewalk train", "--master", "m:1", "--name=n"}));
  std::filesystem::remove(path_);
  auto again = ParseTrainArguments(parsed->argv, "/elsewhere");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->argv, parsed->argv);
  EXPECT_EQ(again->job.checkpoint.folder, "/folder/c");
  EXPECT_EQ(again->job.model.hidden, std::vector<std::int64_t>{8});
  EXPECT_EQ(again->job.seed, 9223372036854775807u);
  EXPECT_EQ(again->job.steps, 5);
  // A file that says nothing is the default job, there as well.
  auto nothing = Parse("");
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(ParseTrainArguments(nothing->argv, "/").ok());
}

TEST_F(TrainJobFile, MistakesAreNamedWithTheirPlace) {
  struct Case {
    const char* toml;
    const char* tag;
    const char* what;  // in what, why or fix
  };
  for (const Case& c : {
           Case{"[optimizer]\nlearning_rte = 0.1\n", "SPEC01", "did you mean \"optimizer.learning_rate\"?"},
           Case{"[optimizer]\nlearning_rte = 0.1\n", "SPEC01", ":2:1: unknown key \"optimizer.learning_rte\""},
           Case{"[trian]\nbatch = 1\n", "SPEC01", "train.batch"},
           Case{"batch = 1\n", "SPEC01", "unknown key"},
           Case{"[train]\nbatch = 0\n", "SPEC02", "[1, "},
           Case{"[train]\nbatch = -3\n", "SPEC02", "a whole number, 0 or more"},
           Case{"[train]\nbatch = \"many\"\n", "SPEC02", ":2:1: \"many\" is no value for train.batch"},
           Case{"[train]\nranks = 0\n", "SPEC02", ":2:1: \"0\" is no value for train.ranks"},
           Case{"[train]\nranks = 2\nranks_min = 3\n", "SPEC02", ":3:1: \"3\" is no value for train.ranks_min"},
           Case{"[train]\nranks = 2\nshrink_after = 3\n", "SPEC02", ":3:1: \"3\" is no value for train.shrink_after"},
           Case{"[optimizer]\nlearning_rate = -0.1\n", "SPEC02", "it lies in [0, 1000000)"},
           Case{"[train]\nbatch = 1.5\n", "SPEC02", ":2:1"},
           Case{"[train]\nbatch = [1]\n", "SPEC02", ":2:1"},
           Case{"[train]\nranks = 257\n", "SPEC02", "[1, 256]"},
           Case{"[train]\nepochs = 1\nsteps = 1\n", "SPEC02", "train.epochs is given too"},
           Case{"[train]\ndtype = \"bf16\"\n", "SPEC02", "f32, f64"},
           Case{"[model]\nkind = \"mpl\"\n", "SPEC02", "mlp, gpt"},
           Case{"[model]\nhidden = [64, 0]\n", "SPEC02", "each number lies in [1, "},
           Case{"[model]\nlayers = 2\n", "SPEC02", "means nothing where model.kind is \"mlp\""},
           Case{"[model]\nkind = \"gpt\"\nwidth = 30\n[data]\nkind = \"text\"\npath = \"t\"\n", "SPEC02",
                "4 heads do not divide a width of 30"},
           Case{"[model]\nkind = \"gpt\"\n", "SPEC02", "gpt goes with text"},
           Case{"[model]\nkind = \"gpt\"\n[data]\nkind = \"text\"\n", "SPEC02", "which text?"},
           Case{"[optimizer]\nmomentum = 1.0\n", "SPEC02", "[0, 1)"},
           Case{"[optimizer]\nlearning_rate = inf\n", "SPEC02", "a number like"},
           Case{"[optimizer]\nkind = \"adamw\"\nmomentum = 0.5\n", "SPEC02", "belongs to \"sgd\""},
           Case{"[optimizer]\nschedule = \"cosin\"\n", "SPEC02", ":2:1: \"cosin\" is no value for optimizer.schedule"},
           Case{"[optimizer]\nschedule = \"cosin\"\n", "SPEC02", "constant, linear, cosine, step"},
           Case{"[optimizer]\nschedule = \"step\"\n", "SPEC02", ":2:1: \"step\" is no value for optimizer.schedule"},
           Case{"[optimizer]\nschedule = \"step\"\n", "SPEC02", "optimizer.step_every = 1000"},
           Case{"[optimizer]\nschedule = \"step\"\nstep_every = 5\nstep_factor = 1.0\n", "SPEC02", ":4:1: \"1\" is no value"},
           Case{"[optimizer]\nschedule = \"cosine\"\nstep_every = 5\n", "SPEC02", ":3:1: optimizer.step_every means nothing"},
           Case{"[optimizer]\ndecay_steps = 5\n", "SPEC02", "belongs to \"linear\" and \"cosine\""},
           Case{"[optimizer]\nschedule = \"linear\"\nfinal_fraction = -0.5\n", "SPEC02", ":3:1"},
           Case{"[optimizer]\nclip_norm = -1.0\n", "SPEC02", ":2:1: \"-1\" is no value for optimizer.clip_norm"},
           Case{"[train]\nmicro_batches = 0\n", "SPEC02", ":2:1: \"0\" is no value for train.micro_batches"},
           Case{"[train]\nbatch = 8\nranks = 4\nmicro_batches = 3\n", "SPEC02", "a batch of 8 cannot be cut into 12 parts for 4 ranks"},
           Case{"[train]\ntimeout = -1\n", "SPEC02", ":2:1: \"-1\" is no value for train.timeout"},
           Case{"[train]\ntimeout = 9223372036854775807\n", "SPEC02", "it lies in [0, "},
           Case{"[train]\nchoose_by = \"costs\"\n", "SPEC02", "fixed-sizes, kept-costs, measured-costs"},
           Case{"[checkpoint]\nkeep = 5\n", "SPEC02", "no checkpoint.folder"},
           Case{"[optimizer]\nkind = \"adamax\"\n", "SPEC02", "sgd, adamw, adam, lamb, adagrad"},
           Case{"[optimizer]\nkind = \"adagrad\"\nbeta1 = 0.5\n", "SPEC02", "belongs to \"adamw\" and \"adam\" and \"lamb\""},
           Case{"[optimizer]\nnesterov = true\nmomentum = 0\n", "SPEC02", "without a momentum it is plain SGD"},
           Case{"[optimizer]\naverage = 1.0\n", "SPEC02", "[0, 1)"},
           Case{"[optimizer]\ndecay_of = \"biases\"\n", "SPEC02", "all, matrices"},
           Case{"[train]\npatience = 3\n", "SPEC02", "train.evaluate_every = 500"},
           Case{"[train]\nnan = \"ignore\"\n", "SPEC02", "stop, skip"},
           Case{"[checkpoint]\nfolder = \"c\"\nbest = true\n", "SPEC02", "nothing is evaluated on the way"},
           Case{"[train\n", "SPEC03", "no TOML"},
       }) {
    auto parsed = Parse(c.toml);
    ASSERT_FALSE(parsed.ok()) << c.toml;
    EXPECT_EQ(parsed.status().tag(), c.tag) << parsed.status().ToString();
    EXPECT_EQ(parsed.status().code(), Code::kInvalid);
    EXPECT_NE(parsed.status().ToString().find(c.what), std::string::npos) << c.toml << parsed.status().ToString();
    EXPECT_FALSE(parsed.status().why().empty()) << c.toml << parsed.status().ToString();
    EXPECT_FALSE(parsed.status().fix().empty()) << c.toml << parsed.status().ToString();
  }
}

// What the command line says wins over the file, also where the two cannot stand beside each other; executors are told the outcome.
TEST_F(TrainJobFile, AFlagOverrulesWhatItExcludes) {
  const auto both_read = [&](const char* toml, const std::vector<std::string>& flags) {
    auto parsed = Parse(toml, flags);
    EXPECT_TRUE(parsed.ok()) << toml << parsed.status().ToString();
    if (!parsed.ok()) return TrainJob();
    auto again = ParseTrainArguments(parsed->argv, "/");
    EXPECT_TRUE(again.ok()) << toml << again.status().ToString();
    if (again.ok()) {
      EXPECT_EQ(again->job.steps, parsed->job.steps);
      EXPECT_EQ(again->job.epochs, parsed->job.epochs);
    }
    return parsed->job;
  };
  TrainJob steps = both_read("[train]\nepochs = 3\n", {"--set", "train.steps=5"});
  EXPECT_EQ(steps.steps, 5);
  EXPECT_EQ(steps.epochs, 0);
  TrainJob epochs = both_read("[train]\nsteps = 3\n", {"--set", "train.epochs=2"});
  EXPECT_EQ(epochs.epochs, 2);
  EXPECT_EQ(epochs.steps, 0);
  EXPECT_EQ(both_read("[train]\nepochs = 3\n", {"--set", "train.steps=0"}).epochs, 3) << "0 steps is no number of steps";
  EXPECT_EQ(both_read("[optimizer]\nmomentum = 0.5\n", {"--set", "optimizer.kind=adamw"}).optimizer.kind, OptimizerSpec::Kind::kAdamW);
  EXPECT_EQ(both_read("[optimizer]\nschedule = \"step\"\nstep_every = 5\n", {"--set", "optimizer.schedule=cosine"}).optimizer.step_every,
            0);
  both_read("[model]\nhidden = [8]\n", {"--set", "model.kind=gpt", "--set", "data.kind=text", "--set", "data.path=t"});
  both_read("[model]\nkind = \"gpt\"\nwidth = 32\n[data]\nkind = \"text\"\nheld_out = 0.2\n",
            {"--set", "model.kind=mlp", "--set", "data.kind=fashion-mnist"});
  EXPECT_EQ(both_read("[checkpoint]\nfolder = \"here\"\nkeep = 5\n", {"--set", "checkpoint.folder="}).checkpoint.folder, "");
  // Of equal rank they still contradict each other.
  EXPECT_EQ(Parse("", {"--set", "train.steps=5", "--set", "train.epochs=1"}).status().tag(), "SPEC02");
  EXPECT_EQ(Parse("", {"--set", "optimizer.kind=adamw", "--set", "optimizer.momentum=0.5"}).status().tag(), "SPEC02");
  EXPECT_EQ(Parse("[optimizer]\nkind = \"adamw\"\n", {"--set", "optimizer.momentum=0.5"}).status().tag(), "SPEC02")
      << "what was typed would mean nothing";
}

// What the documents name: each is a job, and trains.
TEST_F(TrainJobFile, TheExamplesTrain) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ROPEWALK_TRAIN_EXAMPLES)) {
    if (entry.path().extension() != ".toml") continue;
    ++found;
    SCOPED_TRACE(entry.path().string());
    std::vector<std::string> args = {"ropewalk train", entry.path(), "--ranks", "2"};
    auto as_it_is = ParseTrainArguments(args, folder_.path());
    ASSERT_TRUE(as_it_is.ok()) << as_it_is.status().ToString();
    args.insert(args.end(), {"--set", "train.steps=2"});
    auto short_one = ParseTrainArguments(args, folder_.path());
    ASSERT_TRUE(short_one.ok()) << short_one.status().ToString();
    const TrainJob& job = short_one->job;
    if (job.data.kind == "text") {  // some chapters of what its comment says
      ASSERT_EQ(std::system(("bible -f gen1:1-gen8:22 > " + job.data.path).c_str()), 0);
    }
    if (job.data.kind == "clicks") {
      ASSERT_EQ(std::system(("python3 " ROPEWALK_TRAIN_EXAMPLES "/make_clicks.py --rows 600 2> /dev/null > " + job.data.path).c_str()), 0);
    }
    auto ranks = testing::TrainOnThreads(job, 2);
    ASSERT_TRUE(ranks[0].status.ok()) << ranks[0].status.ToString();
    EXPECT_EQ(ranks[0].losses.size(), 2u);
    EXPECT_GT(ranks[0].summary.held_out_labels, 0);
    if (!job.checkpoint.folder.empty()) {
      EXPECT_TRUE(std::filesystem::exists(job.checkpoint.folder + "/step-000000000002.safetensors"));
    }
  }
  EXPECT_GE(found, 2);
}

// `ropewalk train MODEL.onnx --data PATH`: what it stands for, which every --set wins over.
TEST_F(TrainJobFile, AModelOnTheCommandLine) {
  const std::string& here = folder_.path();
  std::filesystem::create_directories(here + "/pets/cat");
  std::filesystem::create_directories(here + "/idx");
  std::ofstream(here + "/idx/train-images-idx3-ubyte.gz") << "";
  const auto parse = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "ropewalk train");
    return ParseTrainArguments(args, here);
  };
  const auto kind_of = [&](const std::string& data) {
    const auto parsed = parse({"m.onnx", "--data", data});
    EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
    return parsed.ok() ? parsed->job.data.kind : "";
  };
  EXPECT_EQ(kind_of("rows.csv"), "csv");
  EXPECT_EQ(kind_of("rows.csv.gz"), "csv");
  EXPECT_EQ(kind_of("a.txt"), "text");
  EXPECT_EQ(kind_of("pets"), "image-folder");
  EXPECT_EQ(kind_of(here + "/pets"), "image-folder");
  EXPECT_EQ(kind_of("idx"), "fashion-mnist");
  EXPECT_EQ(kind_of("fashion-mnist"), "fashion-mnist");

  auto parsed = parse({"m.onnx", "--data=rows", "--export", "out.onnx", "--set", "data.kind=csv", "--ranks=2"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->job.model.kind, "onnx");
  EXPECT_EQ(parsed->job.model.more.at("path"), here + "/m.onnx");
  EXPECT_EQ(parsed->job.data.path, here + "/rows");
  EXPECT_EQ(parsed->job.export_to, here + "/out.onnx");
  EXPECT_EQ(parsed->job.ranks, 2);
  // The call of an executor.
  auto again = ParseTrainArguments(parsed->argv, "/elsewhere");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(AsSettings(again->job), AsSettings(parsed->job));
  EXPECT_EQ(again->job.data.path, parsed->job.data.path);
  // Beside a job file, whose model it takes the place of.
  auto beside = Parse("[model]\nkind = \"mlp\"\nhidden = [8]\n[data]\nkind = \"csv\"\npath = \"/r.csv\"\n", {here + "/m.onnx"});
  ASSERT_TRUE(beside.ok()) << beside.status().ToString();
  EXPECT_EQ(beside->job.model.kind, "onnx");
  EXPECT_EQ(beside->job.data.path, "/r.csv");
  EXPECT_EQ(parse({"m.onnx", "--data"}).status().tag(), "TRAIN03");
  EXPECT_EQ(parse({"m.onnx", "--export=out.pt"}).status().tag(), "SPEC02");
}

TEST_F(TrainJobFile, CallsThatMakeNoSense) {
  EXPECT_EQ(ParseTrainArguments({"ropewalk train"}, "/").status().tag(), "TRAIN03");
  EXPECT_EQ(ParseTrainArguments({"ropewalk train", "a.toml", "b.toml"}, "/").status().tag(), "TRAIN03");
  EXPECT_EQ(ParseTrainArguments({"ropewalk train", "none.toml"}, "/").status().tag(), "IO01");
  Status near = ParseTrainArguments({"ropewalk train", "--rank", "2"}, "/").status();
  EXPECT_EQ(near.tag(), "TRAIN03");
  EXPECT_NE(near.fix().find("--ranks"), std::string::npos) << near.ToString();
  Status far = ParseTrainArguments({"ropewalk train", "--zzzzzz"}, "/").status();
  EXPECT_NE(far.why().find("--ranks, --set, --help"), std::string::npos) << far.ToString();
  // Flags that would be taken and change nothing.
  for (const char* flag : {"--threads", "--memory", "--partitions", "--verify"}) {
    for (const std::vector<std::string>& typed : {std::vector<std::string>{flag, "2"}, {std::string(flag) + "=2"}}) {
      Status status = Parse("", typed).status();
      EXPECT_EQ(status.tag(), "TRAIN03") << status.ToString();
      EXPECT_EQ(status.what(), std::string("train: it takes no ") + flag);
      EXPECT_EQ(status.fix().find("train.threads") != std::string::npos, std::string(flag) == "--threads") << status.ToString();
    }
    EXPECT_EQ(far.why().find(flag), std::string::npos) << far.ToString();
  }
  // The flag that was typed is named, not the setting that it stands for.
  Status none = Parse("", {"--ranks", "0"}).status();
  EXPECT_EQ(none.tag(), "SPEC02");
  EXPECT_EQ(none.what(), "flag --ranks: \"0\" is no value for train.ranks");
  EXPECT_EQ(ParseTrainArguments({"ropewalk train", "--set"}, "/").status().tag(), "TRAIN03");
  EXPECT_EQ(Parse("", {"--set", "train.batch"}).status().tag(), "SPEC04");
  EXPECT_EQ(Parse("", {"--set", "train.bath=3"}).status().tag(), "SPEC01");
  auto help = ParseTrainArguments({"ropewalk train", "--help"}, "/");
  ASSERT_TRUE(help.ok());
  EXPECT_TRUE(help->help);
  for (const ConfigKey& key : TrainKeys()) EXPECT_NE(TrainUsage().find(key.name), std::string::npos) << key.name;
}

}  // namespace
}  // namespace ropewalk::mlrunner

// The reduce side of a sort: see sort.h.
//
// Thread rule: one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/operators/extents.h"
#include "dag/operators/order.h"
#include "dag/operators/sort_items.h"
#include "dag/operators/sort_runs.h"
#include "dag/task.h"

namespace ropewalk::dag {

template <class K, class P, class Order, class Sink>
class SortMerger {
 public:
  using Key = typename Order::Key;
  using Payload = typename Codec<P>::View;
  // What the sink gets: the key alone where there is nothing besides.
  static constexpr bool kKeyOnly = std::is_same_v<P, Nothing> && std::is_invocable_v<Sink&, std::span<const Key>>;
  using Record = std::conditional_t<kKeyOnly, Key, std::pair<Key, Payload>>;

  SortMerger(TaskContext& context, const TaskInput& input, Order order, Sink& sink)
      : context_(context), input_(input), order_(std::move(order)), sink_(sink), records_max_(context.precise_cursor ? 1 : kRecords) {}

  Status Merge(std::uint32_t partition, std::uint32_t partitions) {
    std::vector<SortRun> runs;
    {
      MarkKeys samples;
      RETURN_IF_ERROR(ReadSortRuns(context_, input_, &runs, &samples));
      if (runs.empty()) return {};
      for (const SortRun& run : runs) {
        for (const SortMark& mark : run.samples)
          if (!Decodes(mark)) return DamagedMark(run);
        if (!Decodes(run.last)) return DamagedMark(run);
      }
      FindBorders(runs, partition, partitions);
      if (empty_) return {};
      if constexpr (Order::kBytes) FindSkip(runs);
      for (SortRun& run : runs) {
        run.samples = {};
        run.last = {};
      }
    }
    MarkKeys marks;
    Filter filter(*this);
    RETURN_IF_ERROR(ReadSortBlocks(context_, input_, filter, &runs, &marks));
    for (const SortRun& run : runs) AddCursor(run);
    RETURN_IF_ERROR(StartCursors());
    batch_.resize(records_max_);
    RETURN_IF_ERROR(cursors_.size() == 1 ? DrainOne() : MergeAll());
    return Flush();
  }

 private:
  // A place in the whole order.
  struct Point {
    Key key{};
    std::uint32_t segment = 0, run = 0;
    std::uint64_t index = 0;
  };
  struct Cursor {
    const SortRun* run;
    std::uint32_t next_block, end_block;  // not opened yet
    std::uint32_t check_block;            // from this one on, records may lie behind hi
    std::unique_ptr<ExtentStream> stream;
    Extent extent;
    ByteReader reader{std::string_view()};
    std::uint64_t left = 0, index = 0;  // records of the extent that are left; index of the next one in its run
    bool check_hi = false, done = false;
    Key key{};
    Payload payload{};
  };

  static Key DecodeKey(std::string_view bytes) {
    ByteReader reader(bytes);
    Key key{};
    Codec<K>::Read(reader, &key);
    return key;
  }
  static bool Decodes(const SortMark& mark) {
    ByteReader reader(mark.key);
    Codec<K>::Skip(reader);
    return reader.ok() && reader.empty();
  }
  Status DamagedMark(const SortRun& run) const {
    return Status(Code::kDataLoss, "SORT02", "the index of sorted segment " + std::to_string(run.segment) + " does not decode",
                  "the keys that its producer wrote are not of this type", "the producer is run again");
  }

  int ComparePoint(const Key& key, std::uint32_t segment, std::uint32_t run, std::uint64_t index, const Point& p) const {
    if (int c = order_.Compare(key, p.key); c != 0) return c;
    if (segment != p.segment) return segment < p.segment ? -1 : 1;
    if (run != p.run) return run < p.run ? -1 : 1;
    return index < p.index ? -1 : index > p.index ? 1 : 0;
  }

  void FindBorders(const std::vector<SortRun>& runs, std::uint32_t partition, std::uint32_t partitions) {
    struct Sample {
      const SortRun* run;
      std::size_t i;
    };
    std::vector<Sample> samples;
    std::vector<SortItem> items;  // stand for samples in the order of keys; place is the sample's number
    for (const SortRun& run : runs) {
      for (std::size_t i = 0; i < run.samples.size(); ++i) {
        items.push_back({order_.Prefix(DecodeKey(run.samples[i].key)), samples.size()});
        samples.push_back({&run, i});
      }
    }
    // `runs` is in the order of segment and run, and samples of a run are in order: a stable sort by key gives the whole order.
    std::vector<SortItem> scratch(items.size());
    SortItems(items.data(), items.size(), scratch.data());
    if constexpr (!Order::kExact) {
      using Context = std::pair<const SortMerger*, const Sample*>;
      Context context(this, samples.data());
      SortTies(items.data(), items.size(), &context, [](const void* context, const SortItem& a, const SortItem& b) {
        const auto& [self, samples] = *static_cast<const Context*>(context);
        const Sample &x = samples[a.place], &y = samples[b.place];
        return self->order_.Compare(DecodeKey(x.run->samples[x.i].key), DecodeKey(y.run->samples[y.i].key)) < 0;
      });
    }
    std::vector<std::uint64_t> weights;
    for (const SortItem& item : items) {
      const Sample& s = samples[item.place];
      std::uint64_t end = s.i + 1 < s.run->samples.size() ? s.run->samples[s.i + 1].index : s.run->records;
      weights.push_back(end - s.run->samples[s.i].index);
    }
    auto point = [&](std::size_t at, std::string* bytes) {
      const SortRun& run = *samples[items[at].place].run;
      const SortMark& mark = run.samples[samples[items[at].place].i];
      *bytes = mark.key;
      return Point{DecodeKey(*bytes), run.segment, run.run, mark.index};
    };
    std::size_t lo = SplitterIndex(weights, partition, partitions), hi = samples.size();
    if (partition + 1 < partitions) hi = SplitterIndex(weights, partition + 1, partitions);
    if ((empty_ = lo == hi)) return;
    if (lo > 0) lo_ = point(lo, &lo_bytes_);
    if (hi < samples.size()) hi_ = point(hi, &hi_bytes_);
  }

  // How many leading bytes all keys of this partition share: prefixes begin behind them.
  void FindSkip(const std::vector<SortRun>& runs) {
    Key first = lo_ ? lo_->key : DecodeKey(runs[0].samples[0].key), last = hi_ ? hi_->key : DecodeKey(runs[0].last.key);
    for (const SortRun& run : runs) {
      Key a = DecodeKey(run.samples[0].key), b = DecodeKey(run.last.key);
      if (!lo_ && order_.Compare(a, first) < 0) first = a;
      if (!hi_ && order_.Compare(b, last) > 0) last = b;
    }
    while (skip_ < first.size() && skip_ < last.size() && first[skip_] == last[skip_]) ++skip_;
  }

  // Where the block of `mark` begins compared with `p`: -1 before it, 0 exactly there or not known, 1 behind it. A cut key is only a lower
  // bound.
  int CompareBlock(const SortRun& run, const SortMark& mark, const Point& p) const {
    Key key = DecodeKey(mark.key);
    if constexpr (Order::kBytes) {
      if (mark.cut && p.key.substr(0, key.size()) == key) return 0;
    }
    return ComparePoint(key, run.segment, run.run, mark.index, p);
  }

  // Blocks are in order; only those that may hold something between lo and hi are read.
  class Filter final : public BlockFilter {
   public:
    explicit Filter(const SortMerger& merger) : merger_(merger) {}
    Verdict Judge(const SortRun& run, std::uint32_t block, const SortMark& mark) override {
      if (!Decodes(mark)) return Verdict::kDamaged;
      if (block == 0) begins_ = true;
      begins_ = begins_ && (block == 0 || (merger_.lo_ && merger_.CompareBlock(run, mark, *merger_.lo_) < 0));
      if (merger_.hi_ && merger_.CompareBlock(run, mark, *merger_.hi_) > 0) return Verdict::kBehind;
      return begins_ ? Verdict::kBegins : Verdict::kWanted;
    }

   private:
    const SortMerger& merger_;
    bool begins_ = false;  // no block so far began at lo or behind it
  };

  void AddCursor(const SortRun& run) {
    const std::size_t n = run.marks.size();
    if (n == 0) return;
    std::size_t check = n;
    if (hi_) {
      check = 0;
      while (check + 1 < n && CompareBlock(run, run.marks[check + 1], *hi_) < 0) ++check;
    }
    Cursor cursor;
    cursor.run = &run;
    cursor.next_block = run.first_mark;
    cursor.end_block = run.first_mark + static_cast<std::uint32_t>(n);
    cursor.check_block = run.first_mark + static_cast<std::uint32_t>(check);
    cursors_.push_back(std::move(cursor));
  }

  Status StartCursors() {
    // A few runs are opened whole, and their reader reads ahead; very many only block by block, so that memory stays bounded.
    std::uint64_t blocks = context_.settings->operator_bytes / (std::max<std::size_t>(cursors_.size(), 1) * kBlockBytesAbout);
    window_blocks_ = static_cast<std::uint32_t>(cursors_.size() <= 32 ? kSortParts : std::clamp<std::uint64_t>(blocks, 1, 64));
    for (Cursor& cursor : cursors_) {
      RETURN_IF_ERROR(Advance(cursor));
      while (lo_ && !cursor.done && ComparePoint(cursor.key, cursor.run->segment, cursor.run->run, cursor.index - 1, *lo_) < 0) {
        RETURN_IF_ERROR(Advance(cursor));
      }
    }
    retired_.clear();
    std::erase_if(cursors_, [](const Cursor& cursor) { return cursor.done; });
    return {};
  }

  // The cursor's next record, or done.
  Status Advance(Cursor& c) {
    if (c.left == 0) [[unlikely]] {
      RETURN_IF_ERROR(NextBlock(c));
      if (c.done) return {};
    }
    Codec<K>::Read(c.reader, &c.key);
    Codec<P>::Read(c.reader, &c.payload);
    if (!c.reader.ok()) [[unlikely]]
      return DamagedExtent(c.extent);
    --c.left;
    ++c.index;
    if (c.left == 0 && !c.reader.empty()) [[unlikely]]
      return DamagedExtent(c.extent);
    if (c.check_hi && ComparePoint(c.key, c.run->segment, c.run->run, c.index - 1, *hi_) >= 0) End(c);
    return {};
  }

  void End(Cursor& c) {
    c.done = true;
    c.stream.reset();
    Retire(c);
  }
  // The batch may have views into it.
  void Retire(Cursor& c) {
    if (c.extent.holder != nullptr) retired_.push_back(std::move(c.extent.holder));
    c.extent = Extent();
  }

  Status NextBlock(Cursor& c) {
    Retire(c);
    while (c.left == 0) {
      if (c.stream == nullptr) {
        if (c.next_block == c.end_block) {
          End(c);
          return {};
        }
        std::uint32_t count = std::min(c.end_block - c.next_block, window_blocks_);
        ASSIGN_OR_RETURN(c.stream, context_.blocks->Open(input_.segments[c.run->segment], c.run->first_part + c.next_block, count));
        c.next_block += count;
      }
      ASSIGN_OR_RETURN(std::optional<Extent> extent, c.stream->Next());
      if (!extent) {
        c.stream.reset();
        continue;
      }
      c.extent = std::move(*extent);
      std::uint32_t block = c.extent.part - c.run->first_part;
      if (block < c.run->first_mark || block >= c.end_block) return DamagedExtent(c.extent);
      c.reader = ByteReader(AsView(c.extent.bytes));
      c.left = c.extent.records;
      c.index = c.run->marks[block - c.run->first_mark].index;
      c.check_hi = hi_.has_value() && block >= c.check_block;
      // Its records are counted as they leave: a block at a border of the range is read by two tasks.
      if (context_.progress != nullptr) context_.progress->bytes_in.fetch_add(c.extent.bytes.size(), std::memory_order_relaxed);
    }
    return {};
  }

  std::uint64_t PrefixOf(const Key& key) const {
    if constexpr (Order::kBytes) {
      std::uint64_t prefix = BytePrefix(key, skip_);
      return Order::kDescending ? ~prefix : prefix;
    } else {
      return order_.Prefix(key);
    }
  }

  void Push(Cursor& c) {
    Record& to = batch_[batch_count_++];
    if constexpr (kKeyOnly) {
      to = std::move(c.key);
    } else {
      to.first = std::move(c.key);
      to.second = std::move(c.payload);
    }
  }
  Status Flush() {
    std::size_t n = std::exchange(batch_count_, 0);
    if (n > 0) {
      if (context_.progress != nullptr) context_.progress->records_in.fetch_add(n, std::memory_order_relaxed);
      if (context_.Cancelled()) return CancelledStatus(context_);
      RETURN_IF_ERROR(sink_(std::span<const Record>(batch_.data(), n)));
    }
    retired_.clear();
    return {};
  }

  Status DrainOne() {
    Cursor& c = cursors_[0];
    while (!c.done) {
      Push(c);
      if (batch_count_ == records_max_) RETURN_IF_ERROR(Flush());
      RETURN_IF_ERROR(Advance(c));
    }
    return {};
  }

  // A tree of losers: inner node i holds the cursor that lost there, and its prefix, so that most matches touch no key.
  struct Node {
    std::uint64_t prefix;
    std::uint64_t cursor;  // kDone is set when it has no more records
  };
  static constexpr std::uint64_t kDone = std::uint64_t(1) << 63;
  bool Before(const Node& a, const Node& b) const { return a.prefix != b.prefix ? a.prefix < b.prefix : TieBefore(a, b); }
  bool TieBefore(const Node& a, const Node& b) const {
    if constexpr (!Order::kExact) {
      if (((a.cursor | b.cursor) & kDone) == 0) {
        if (int c = order_.Compare(cursors_[a.cursor].key, cursors_[b.cursor].key); c != 0) return c < 0;
      }
    }
    return a.cursor < b.cursor;  // cursors are in the order of segment and run, behind them those that are done
  }
  Node Build(std::size_t node, std::vector<Node>& tree) {
    std::size_t k = cursors_.size();
    if (node >= k) return {PrefixOf(cursors_[node - k].key), node - k};
    Node a = Build(2 * node, tree), b = Build(2 * node + 1, tree);
    bool a_wins = Before(a, b);
    tree[node] = a_wins ? b : a;
    return a_wins ? a : b;
  }
  Status MergeAll() {
    if (cursors_.empty()) return {};
    const std::size_t k = cursors_.size();
    std::vector<Node> tree(k);
    Node winner = Build(1, tree);
    while ((winner.cursor & kDone) == 0) {
      const std::size_t leaf = winner.cursor + k;
      Cursor& c = cursors_[winner.cursor];
      Push(c);
      if (batch_count_ == records_max_) RETURN_IF_ERROR(Flush());
      RETURN_IF_ERROR(Advance(c));
      if (c.done) [[unlikely]] {
        winner = {~std::uint64_t(0), winner.cursor | kDone};
      } else {
        winner.prefix = PrefixOf(c.key);
      }
      for (std::size_t node = leaf / 2; node > 0; node /= 2) {
        Node& loser = tree[node];
        if (loser.prefix == winner.prefix) [[unlikely]] {
          if (TieBefore(loser, winner)) std::swap(loser, winner);
          continue;
        }
        // Who wins is a toss-up, which no processor predicts: change places by arithmetic, not by a branch.
        const std::uint64_t change = std::uint64_t(0) - std::uint64_t(loser.prefix < winner.prefix);
        const std::uint64_t prefix = (loser.prefix ^ winner.prefix) & change, cursor = (loser.cursor ^ winner.cursor) & change;
        loser.prefix ^= prefix;
        winner.prefix ^= prefix;
        loser.cursor ^= cursor;
        winner.cursor ^= cursor;
      }
    }
    return {};
  }

  static constexpr std::size_t kRecords = 1024;
  static constexpr std::uint64_t kBlockBytesAbout = 512 << 10;

  TaskContext& context_;
  const TaskInput& input_;
  Order order_;
  Sink& sink_;
  const std::size_t records_max_;    // in a batch
  std::string lo_bytes_, hi_bytes_;  // their keys, encoded
  std::optional<Point> lo_, hi_;
  bool empty_ = false;    // nothing lies between the borders
  std::size_t skip_ = 0;  // leading bytes that all keys of the partition share
  std::uint32_t window_blocks_ = 1;
  std::vector<Cursor> cursors_;
  std::vector<std::shared_ptr<const void>> retired_;
  std::vector<Record> batch_;
  std::size_t batch_count_ = 0;
};

// Partition `partition` of `partitions` of the whole order of all segments of `input`. Sink: Status(std::span<const std::pair<View<K>,
// View<P>>>), or, for P = Nothing, Status(std::span<const View<K>>).
template <class K, class P, class Order, class Sink>
Status MergeSorted(TaskContext& context, const TaskInput& input, std::uint32_t partition, std::uint32_t partitions, Order order,
                   Sink&& sink) {
  SortMerger<K, P, Order, std::remove_reference_t<Sink>> merger(context, input, std::move(order), sink);
  return merger.Merge(partition, partitions);
}

}  // namespace ropewalk::dag

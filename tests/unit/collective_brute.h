// A second, naive interpreter of collective plans, for tests only: numbers instead of symbols, one step at a time in an order drawn from a
// seed. It shares the plan and the sizes of ranges with the product and nothing else, and is meant to be wrong in no way that the prover
// is.
//
// Every element at the start is a random 64-bit number, so sums that are equal are sums of the same elements. What a transport may do, it
// does in some run: a message is read when it is sent or when it is taken, one-sided work is done late.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/plan.h"

namespace ropewalk::collective::testing {

class Brute {
 public:
  struct Options {
    Sizes sizes;
    bool in_place = false;
    std::uint64_t seed = 0;
    // Of the ranks and channels, the one that can go and comes first in an order goes (which starves others), or any.
    bool by_priority = false;
  };

  Brute(const Plan& plan, Options options) : plan_(plan), options_(std::move(options)), random_(options_.seed) {
    const Header& header = plan_.header;
    for (const Program& program : plan_.programs) {
      auto layout = Layout::Make(header, program, options_.sizes);
      if (!layout.ok()) {
        wrong_ = layout.status().ToString();
        return;
      }
      layouts_.push_back(*std::move(layout));
    }
    std::vector<std::int64_t> lengths(header.buffers.size());
    for (std::size_t b = 0; b < lengths.size(); ++b)
      for (const Layout& layout : layouts_) lengths[b] = std::max(lengths[b], layout.ElementsOf(static_cast<std::int32_t>(b)));
    Random values = Random::ForPurpose(4711, 1);
    memory_.resize(static_cast<std::size_t>(header.request.ranks) * lengths.size());
    bases_.resize(memory_.size());
    auto each_buffer = [&](bool is_alias, auto make) {
      for (std::int32_t rank = 0; rank < header.request.ranks; ++rank)
        for (std::size_t b = 0; b < lengths.size(); ++b)
          if ((options_.in_place && header.buffers[b].may_alias != kNone) == is_alias) make(rank, b, rank * lengths.size() + b);
    };
    // What lies in another's memory comes behind that.
    for (bool is_alias : {false, true})
      each_buffer(is_alias, [&](std::int32_t rank, std::size_t b, std::size_t place) {
        const Buffer& buffer = header.buffers[b];
        Cells cells(lengths[b]);
        bool given = buffer.role == Role::kIn || buffer.role == Role::kState || buffer.role == Role::kWindow;
        for (auto& cell : cells) cell = given ? values() : Garbage();
        if (buffer.element == Element::kCount && buffer.role == Role::kIn)
          for (std::size_t to = 0; to < cells.size(); ++to) cells[to] = options_.sizes.table[rank * header.request.ranks + to];
        if (!is_alias) {
          memory_[place] = std::make_shared<Cells>(std::move(cells));
          return;
        }
        memory_[place] = memory_[rank * lengths.size() + buffer.may_alias];
        bases_[place] = layouts_[rank].AliasOffset(static_cast<std::int32_t>(b), rank);
        const auto end = static_cast<std::size_t>(bases_[place] + lengths[b]);
        if (memory_[place]->size() < end) memory_[place]->resize(end);
        if (given) std::copy(cells.begin(), cells.end(), memory_[place]->begin() + bases_[place]);
      });
    for (std::size_t place = 0; place < memory_.size(); ++place)
      start_.emplace_back(memory_[place]->begin() + bases_[place], memory_[place]->end());
    read_ = start_;
    for (std::int32_t rank = 0; rank < header.request.ranks; ++rank)
      for (std::int32_t channel = 0; channel < header.channel_count; ++channel) {
        Thread thread{.rank = rank, .channel = channel};
        thread.done.resize(plan_.programs[rank].steps.size());
        threads_.push_back(std::move(thread));
        order_.push_back(static_cast<std::int32_t>(order_.size()));
      }
    for (std::size_t i = 0; i < threads_.size(); ++i) order_.push_back(static_cast<std::int32_t>(order_.size()));  // their agents
    iterations_.resize(header.request.ranks);
    for (std::int32_t rank = 0; rank < header.request.ranks; ++rank) iterations_[rank].resize(plan_.programs[rank].loops.size());
    for (const Program& program : plan_.programs)
      for (const Edge& edge : program.edges) slots_[{program.rank, edge.peer, edge.channel}] = edge.slots;
  }

  // Empty: the run came to its end and everything that the postcondition claims is true.
  std::string Run() {
    if (!wrong_.empty()) return wrong_;
    Shuffle();
    for (std::uint64_t n = 0;; ++n) {
      if (n > 200'000) return "no end";
      if (!options_.by_priority || random_.OneIn(20)) Shuffle();
      bool moved = false;
      for (std::int32_t who : order_)
        if ((moved = Move(who))) break;
      if (!wrong_.empty()) return wrong_;
      if (!moved) break;
    }
    for (const Thread& thread : threads_)
      if (!Ended(thread)) return "deadlock at rank " + std::to_string(thread.rank);
    for (const auto& [key, queue] : messages_)
      if (!queue.empty()) return "a message that nobody took";
    return Judge();
  }

 private:
  using Cells = std::vector<std::uint64_t>;
  struct Message {
    bool late = false;  // its memory is read when it is taken
    std::int32_t buffer = 0;
    Extent extent;
    Cells cells;
    Element element = Element::kPayload;
  };
  struct Remote {  // one-sided work that waits for its agent
    const Step* step = nullptr;
    Extent from, into;
    std::int32_t from_buffer = 0, into_buffer = 0;
  };
  struct Thread {
    std::int32_t rank = 0, channel = 0, at = 0;
    std::vector<std::int64_t> done;
    std::deque<Remote> remote;
  };
  using Line = std::tuple<std::int32_t, std::int32_t, std::int32_t>;

  std::uint64_t Garbage() { return random_(); }
  void Shuffle() {
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.Below(i)]);
  }
  bool Ended(const Thread& thread) const { return thread.at == plan_.programs[thread.rank].channels[thread.channel].step_count; }
  Cells& MemoryOf(std::int32_t rank, std::int32_t buffer) { return *memory_[rank * plan_.header.buffers.size() + buffer]; }
  std::int64_t BaseOf(std::int32_t rank, std::int32_t buffer) const { return bases_[rank * plan_.header.buffers.size() + buffer]; }
  Extent At(std::int32_t rank, std::int32_t chunk) const { return layouts_[rank].OfChunk(chunk, iterations_[rank].data()); }
  std::int32_t BufferOf(std::int32_t rank, std::int32_t chunk) const { return plan_.programs[rank].chunks[chunk].buffer; }
  Element ElementOf(std::int32_t rank, std::int32_t chunk) const { return plan_.header.buffers[BufferOf(rank, chunk)].element; }
  Cells Load(std::int32_t rank, std::int32_t buffer, Extent extent) {
    const Cells& memory = MemoryOf(rank, buffer);
    extent.offset += BaseOf(rank, buffer);
    if (extent.end() > static_cast<std::int64_t>(memory.size())) {
      wrong_ = "outside of a buffer";
      return Cells(extent.count);
    }
    Cells cells(memory.begin() + extent.offset, memory.begin() + extent.end());
    if (plan_.header.buffers[buffer].relaxed)
      std::copy(cells.begin(), cells.end(), read_[rank * plan_.header.buffers.size() + buffer].begin() + extent.offset);
    return cells;
  }
  void Store(std::int32_t rank, std::int32_t buffer, Extent extent, const Cells& cells) {
    Cells& memory = MemoryOf(rank, buffer);
    extent.offset += BaseOf(rank, buffer);
    if (static_cast<std::int64_t>(cells.size()) != extent.count || extent.end() > static_cast<std::int64_t>(memory.size())) {
      wrong_ = "a store of another length";
      return;
    }
    if (plan_.header.buffers[buffer].role == Role::kIn) wrong_ = "a store into the caller's input";
    std::copy(cells.begin(), cells.end(), memory.begin() + extent.offset);
  }

  bool Move(std::int32_t who) {
    const auto count = static_cast<std::int32_t>(threads_.size());
    if (who >= count) return MoveAgent(&threads_[who - count]);
    Thread& thread = threads_[who];
    if (Ended(thread)) return false;
    const Program& program = plan_.programs[thread.rank];
    const std::int32_t first = program.channels[thread.channel].first_step;
    const Step& step = program.steps[first + thread.at];
    std::vector<std::int64_t>& done = DoneOf(thread.rank);
    for (std::int32_t i = 0; i < step.dependency_count; ++i) {
      const Dependency& dependency = program.dependencies[step.first_dependency + i];
      std::int64_t needed = done[first + thread.at] + 1 - dependency.lag;
      if (dependency.lag == kAllTrips) needed = TimesOf(program, thread.rank, dependency);
      if (done[program.channels[dependency.channel].first_step + dependency.step] < needed) return false;
    }
    const std::int32_t at = thread.at;
    if (step.op == Op::kLoop) {
      iterations_[thread.rank][step.loop] = 0;
      ++thread.at;
    } else if (step.op == Op::kEndLoop) {
      bool again = ++iterations_[thread.rank][step.loop] < layouts_[thread.rank].Trips(step.loop);
      thread.at = again ? step.jump + 1 : thread.at + 1;
    } else if (Do(&thread, step)) {
      ++thread.at;
    } else {
      return false;
    }
    ++done[first + at];
    ++clock_;
    first_move_.try_emplace(thread.rank, clock_);
    last_move_[thread.rank] = clock_;
    return true;
  }
  std::vector<std::int64_t>& DoneOf(std::int32_t rank) { return threads_[rank * plan_.header.channel_count].done; }
  std::int64_t TimesOf(const Program& program, std::int32_t rank, const Dependency& dependency) const {
    std::int64_t times = 1;
    for (std::int32_t i = 0; i <= dependency.step; ++i) {
      const Step& step = program.steps[program.channels[dependency.channel].first_step + i];
      if (step.op == Op::kLoop) times *= layouts_[rank].Trips(step.loop);
      if (step.op == Op::kEndLoop && i < dependency.step) times /= layouts_[rank].Trips(step.loop);
    }
    return times;
  }

  bool MoveAgent(Thread* thread) {
    if (thread->remote.empty()) return false;
    Remote work = thread->remote.front();
    thread->remote.pop_front();
    if (work.step->op == Op::kNotify) {
      ++counters_[{work.step->to, work.step->counter}];
      return true;
    }
    bool get = work.step->op == Op::kGet;
    Cells cells = Load(get ? work.step->to : thread->rank, work.from_buffer, work.from);
    std::int32_t owner = get ? thread->rank : work.step->to;
    if (work.step->op == Op::kAccumulate) {
      Cells there = Load(owner, work.into_buffer, work.into);
      if (there.size() != cells.size()) return wrong_ = "lengths", true;
      for (std::size_t i = 0; i < cells.size(); ++i) cells[i] += there[i];
    }
    Store(owner, work.into_buffer, work.into, cells);
    return true;
  }

  Cells Take(std::int32_t rank, std::int32_t peer, std::int32_t channel) {
    auto& queue = messages_[{peer, rank, channel}];
    Message message = std::move(queue.front());
    queue.pop_front();
    if (message.late) return Load(peer, message.buffer, message.extent);
    return message.cells;
  }
  void Scale(Cells* cells, std::int32_t scale) {
    if (scale == kNone) return;
    for (auto& cell : *cells) cell *= static_cast<std::uint64_t>(plan_.header.scales[scale]);
  }

  bool Do(Thread* thread, const Step& step) {
    const std::int32_t rank = thread->rank;
    const Program& program = plan_.programs[rank];
    const Operand* operands = program.operands.data() + step.first_operand;
    switch (step.op) {
      case Op::kNotify:
      case Op::kPut:
      case Op::kGet:
      case Op::kAccumulate: {
        Remote work{.step = &step};
        if (step.op != Op::kNotify) {
          std::int32_t from = step.op == Op::kGet ? step.remote : operands[0].chunk, into = step.op == Op::kGet ? step.dst : step.remote;
          work.from = At(rank, from), work.from_buffer = BufferOf(rank, from);
          work.into = At(rank, into), work.into_buffer = BufferOf(rank, into);
        }
        thread->remote.push_back(work);
        return true;
      }
      case Op::kWait:
        return counters_[{rank, step.counter}] >= step.threshold;
      case Op::kFlush:
        return thread->remote.empty() && messages_[{rank, step.to, thread->channel}].empty();
      case Op::kContribute: {
        Store(rank, BufferOf(rank, step.dst), At(rank, step.dst),
              Load(rank, BufferOf(rank, operands[0].chunk), At(rank, operands[0].chunk)));
        if (step.aux != kNone) Store(rank, BufferOf(rank, step.aux), At(rank, step.aux), Cells(At(rank, step.aux).count, 1));
        return true;
      }
      case Op::kCounts: {
        Cells counts = Load(rank, BufferOf(rank, operands[0].chunk), At(rank, operands[0].chunk));
        const std::size_t ranks = static_cast<std::size_t>(plan_.header.request.ranks);
        if (counts.size() != ranks) wrong_ = "counts of fewer or more ranks";
        const auto column = static_cast<std::size_t>(step.column != kNone ? step.column : rank);
        for (std::size_t from = 0; from < std::min(ranks, counts.size()); ++from)
          if (counts[from] != static_cast<std::uint64_t>(options_.sizes.table[from * ranks + column])) wrong_ = "wrong counts";
        return true;
      }
      default:
        return DoData(thread, step);
    }
  }

  bool DoData(Thread* thread, const Step& step) {
    const std::int32_t rank = thread->rank;
    const Program& program = plan_.programs[rank];
    const Operand* operands = program.operands.data() + step.first_operand;
    std::map<Line, std::size_t> wanted;
    for (std::int32_t i = 0; i < step.operand_count; ++i)
      if (operands[i].peer != kNone) ++wanted[{operands[i].peer, rank, thread->channel}];
    for (const auto& [line, count] : wanted)
      if (messages_[line].size() < count) return false;
    const Line out{rank, step.to, thread->channel};
    if (step.to != kNone && static_cast<std::int64_t>(messages_[out].size()) >= slots_[out]) return false;

    Cells result;
    for (std::int32_t i = 0; i < step.operand_count; ++i) {
      const Operand& operand = operands[i];
      const Extent extent = At(rank, operand.chunk);
      Cells cells;
      if (operand.peer != kNone) {
        const Message& next = messages_[{operand.peer, rank, thread->channel}].front();
        if (next.element != ElementOf(rank, operand.chunk)) wrong_ = "another type";
        cells = Take(rank, operand.peer, thread->channel);
      } else {
        cells = Load(rank, BufferOf(rank, operand.chunk), extent);
      }
      if (static_cast<std::int64_t>(cells.size()) != extent.count) wrong_ = "a message of another length";
      if (!wrong_.empty()) return true;
      if (operand.decode) cells = Decode(cells);
      Scale(&cells, operand.scale);
      if (i == 0) {
        result = std::move(cells);
      } else {
        if (cells.size() != result.size()) return wrong_ = "operands of different lengths", true;
        for (std::size_t k = 0; k < cells.size(); ++k) result[k] += cells[k];
      }
    }
    Scale(&result, step.scale);
    if (step.op == Op::kEncode) result = Encode(result, step.codec);
    if (step.dst != kNone) Store(rank, BufferOf(rank, step.dst), At(rank, step.dst), result);
    if (step.to == kNone || !wrong_.empty()) return true;
    std::int32_t chunk = step.dst != kNone ? step.dst : operands[0].chunk;
    Message message{
        .buffer = BufferOf(rank, chunk), .extent = At(rank, chunk), .cells = std::move(result), .element = ElementOf(rank, chunk)};
    message.late = (step.dst != kNone || step.op == Op::kSend) && operands[0].scale == kNone && random_.OneIn(2);
    messages_[out].push_back(std::move(message));
    return true;
  }

  // Bytes that only mean something whole and in order.
  Cells Encode(const Cells& cells, std::int32_t codec) {
    Cells bytes(EncodedBytes(plan_.header.request.codecs[codec], static_cast<std::int64_t>(cells.size())));
    for (auto& byte : bytes) byte = random_();
    if (!bytes.empty()) encoded_[bytes] = cells;
    return bytes;
  }
  Cells Decode(const Cells& bytes) {
    if (bytes.empty()) return {};
    auto found = encoded_.find(bytes);
    if (found != encoded_.end()) return found->second;
    wrong_ = "what is decoded is no whole encoded chunk";
    return {};
  }

  std::string Judge() {
    auto post = Layout::Make(plan_.header, plan_.post, {}, options_.sizes);
    if (!post.ok()) return post.status().ToString();
    const std::int32_t ranks = plan_.header.request.ranks;
    // As it was at the start; of a relaxed window, as it was when it was read.
    auto start = [&](std::int32_t rank, std::int32_t chunk, std::int64_t i) {
      const std::int32_t buffer = plan_.post.chunks[chunk].buffer;
      const std::vector<Cells>& cells = plan_.header.buffers[buffer].relaxed ? read_ : start_;
      return cells[rank * plan_.header.buffers.size() + buffer][post->OfChunk(chunk, nullptr).offset + i];
    };
    for (const Claim& claim : plan_.post.claims) {
      if (claim.kind == ClaimKind::kBarrier) {
        for (std::int32_t a = 0; a < ranks && ranks > 1; ++a)
          for (std::int32_t b = 0; b < ranks; ++b)
            if (!last_move_.count(a) || !first_move_.count(b) || last_move_[a] < first_move_[b]) return "a rank left before another came";
        continue;
      }
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        if (claim.rank != kEveryRank && claim.rank != rank) continue;
        Extent out = post->OfChunk(claim.out, nullptr);
        const std::int32_t buffer = plan_.post.chunks[claim.out].buffer;
        const std::size_t place = rank * plan_.header.buffers.size() + buffer;
        const std::int64_t base = bases_[place];
        if (base + out.end() > static_cast<std::int64_t>(memory_[place]->size())) return "a claim about what no step touches";
        const Cells held(memory_[place]->begin() + base + out.offset, memory_[place]->begin() + base + out.end());
        for (std::int64_t i = 0; i < out.count; ++i) {
          std::uint64_t expected = 0;
          for (std::int32_t t = 0; t < claim.term_count; ++t) {
            const Term& term = plan_.post.terms[claim.first_term + t];
            for (std::int32_t of = 0; of < ranks; ++of)
              if (term.rank == kEveryRank || term.rank == of)
                expected += static_cast<std::uint64_t>(term.coefficient) * start(of, term.chunk, i);
          }
          bool is_right = held[i] == expected;
          if (plan_.header.buffers[buffer].relaxed) {
            // Whatever is there at the end, and was there when it was read, is what the claim says may be put, or nothing was put yet.
            const std::uint64_t before = start_[place][out.offset + i], read = read_[place][out.offset + i];
            is_right = (is_right || held[i] == before) && (read == expected || read == before);
          }
          if (!is_right) return "element " + std::to_string(out.offset + i) + " of rank " + std::to_string(rank);
        }
        if (claim.counter == kNone) continue;
        Cells counter = Load(rank, plan_.post.chunks[claim.counter].buffer, post->OfChunk(claim.counter, nullptr));
        for (std::uint64_t one : counter)
          if (one != static_cast<std::uint64_t>(ranks)) return "the counter";
      }
    }
    return "";
  }

  const Plan& plan_;
  Options options_;
  Random random_;
  std::string wrong_;
  std::vector<Layout> layouts_;
  std::vector<std::shared_ptr<Cells>> memory_;  // by rank and buffer
  std::vector<std::int64_t> bases_;             // where in it the buffer begins
  std::vector<Cells> start_, read_;             // read_: of relaxed windows, what was read last
  std::vector<Thread> threads_;
  std::vector<std::int32_t> order_;
  std::vector<std::vector<std::int64_t>> iterations_;
  std::map<Line, std::int64_t> slots_;
  std::map<Line, std::deque<Message>> messages_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> counters_;
  std::map<Cells, Cells> encoded_;
  std::int64_t clock_ = 0;
  std::map<std::int32_t, std::int64_t> first_move_, last_move_;
};

}  // namespace ropewalk::collective::testing

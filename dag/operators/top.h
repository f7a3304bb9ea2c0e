// The first n records of an order, in a bounded heap: Top and Take of a sorted dataset without sorting it.
//
// Of records with equal keys the earlier added ones win, so merging tasks' results in task order is deterministic.
//
// Thread rule: one task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dag/codec.h"
#include "dag/operators/order.h"

namespace ropewalk::dag {

template <class T, class Order>
class Top {
 public:
  explicit Top(std::size_t n, Order order = {}) : n_(n), order_(std::move(order)) {}

  // `record`: View<T>. It is copied only when it is among the first n so far.
  void Add(const View<T>& record) {
    if (n_ == 0) return;
    ++added_;
    std::uint64_t prefix = order_.Prefix(record);
    if (heap_.size() < n_) {
      heap_.push_back({prefix, added_, {}});
      Codec<T>::Assign(&heap_.back().record, record);
      std::push_heap(heap_.begin(), heap_.end(), Before());
      return;
    }
    // A record that only equals the last one came later: it does not belong.
    const Item& last = heap_.front();
    if (prefix > last.prefix || (prefix == last.prefix && (Order::kExact || order_.Compare(record, ViewOf(last.record)) >= 0))) return;
    std::pop_heap(heap_.begin(), heap_.end(), Before());
    heap_.back().prefix = prefix;
    heap_.back().added = added_;
    Codec<T>::Assign(&heap_.back().record, record);
    std::push_heap(heap_.begin(), heap_.end(), Before());
  }

  // The first n in order; empties the heap.
  std::vector<T> Take() {
    std::sort_heap(heap_.begin(), heap_.end(), Before());
    std::vector<T> out;
    out.reserve(heap_.size());
    for (Item& item : heap_) out.push_back(std::move(item.record));
    heap_.clear();
    return out;
  }
  // What Take() gives, as a task's result value.
  std::string TakeEncoded() { return Encode<std::vector<T>>(Take()); }
  // Adds what another task's TakeEncoded() gave. kDataLoss when it does not decode.
  Status Merge(std::string_view encoded) {
    ASSIGN_OR_RETURN(std::vector<T> records, Decode<std::vector<T>>(encoded));
    for (const T& record : records) Add(ViewOf(record));
    return {};
  }

 private:
  struct Item {
    std::uint64_t prefix;
    std::uint64_t added;
    T record;
  };
  static decltype(auto) ViewOf(const T& record) {
    if constexpr (std::is_same_v<View<T>, T>) {
      return (record);
    } else {
      return View<T>(record);
    }
  }
  // The heap's front is the last in order.
  auto Before() const {
    return [this](const Item& a, const Item& b) {
      if (a.prefix != b.prefix) return a.prefix < b.prefix;
      if constexpr (!Order::kExact) {
        if (int c = order_.Compare(ViewOf(a.record), ViewOf(b.record)); c != 0) return c < 0;
      }
      return a.added < b.added;
    };
  }

  std::size_t n_;
  Order order_;
  std::uint64_t added_ = 0;
  std::vector<Item> heap_;
};

}  // namespace ropewalk::dag

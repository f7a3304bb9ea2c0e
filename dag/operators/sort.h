// A total order over all partitions in one pass: SortBy, and the `sort` job.
//
//   map side     SortWriter: sorts its input into runs of memory_bytes_max and writes them as blocks: parts 2, 3, 4... of the segment,
//                numbered through its runs. Part 0 says of each run: samples at even distances, last key; part 1: first key of each
//                block.
//   reduce side  MergeSorted: reads all parts 0, computes the same splitters as every other reducer, finds in parts 1 which blocks of all
//                runs lie between its two, keeps no more than that, and merges them. A splitter is a place in the whole order (key,
//                segment, run, index), so equal keys are divided as well.
//
// Record: the key as Codec<K>::Write wrote it, then the payload. Order of equal keys: by segment, run and index, that is, by arrival.
// Keys are Views: a sort of lines hands out string_views straight into the fetched blocks.
//
// Owner: a plan node's task program. Thread rule: one task.
#pragma once

#include "dag/operators/order.h"
#include "dag/operators/sort_merger.h"
#include "dag/operators/sort_writer.h"

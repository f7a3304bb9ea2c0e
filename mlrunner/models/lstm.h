// LSTM: layers of recurrent cells (Hochreiter and Schmidhuber 1997, with forget gates), and two models on them: of the symbol that comes
// next, and of the class of a whole sequence.
//
// Parameters have PyTorch's shapes and order of gates (i, f, g, o), and both of its bias vectors, so weights of nn.LSTM fit as they are:
// weight_ih_l0 is layer0/w_ih, weight_ih_l0_reverse is layer0/reverse/w_ih, and so on.
//
// Thread rule: as the builder's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlrunner/models/layers.h"

namespace ropewalk::mlrunner {

struct LstmOptions {
  std::int64_t hidden = 256;  // H
  std::int64_t layers = 1;
  double dropout = 0;  // of what goes from one layer to the next
  // Each layer goes through the sequence a second time, from its end to its beginning, with parameters of their own, and gives both
  // (Schuster and Paliwal 1997). States are those of layer 0 forwards, layer 0 backwards, layer 1 forwards, ...
  bool bidirectional = false;
  std::vector<Value> hidden_first;  // of each layer, (B, H); empty: zeros
  std::vector<Value> cell_first;
};
struct LstmResult {
  Value y;                          // (T, B, H): the last layer after each step; (T, B, 2 H): forwards, then backwards
  std::vector<Value> hidden, cell;  // of each layer after its last step, (B, H)
};
// x (T, B, in), T a number. Steps come first, so that what is done at one of them lies together.
LstmResult LstmLayers(Builder& b, Layers& m, const std::string& name, Value x, const LstmOptions& options);

struct LstmShape {
  std::int64_t symbols = 0;   // that an id may be
  std::int64_t width = 256;   // of the table of symbols
  std::int64_t hidden = 256;  // H
  std::int64_t layers = 2;
  double dropout = 0;
  bool bidirectional = false;  // of whole sequences: a model of the next symbol would see it, and is refused (GRAPH09)
};
// ids (B, T) -> logits (B, T, symbols): of the symbol that comes next at each place
Model LstmLanguage(Builder& b, const LstmShape& shape, const Value& ids);
// ids (B, T) -> logits (B, classes), of the last layer's state after the last symbol, and backwards after the first one
Model LstmClassifier(Builder& b, const LstmShape& shape, std::int64_t classes, const Value& ids);

}  // namespace ropewalk::mlrunner

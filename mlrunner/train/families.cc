// The tables of families: one line each.
#include <algorithm>

#include <fmt/format.h>

#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {

// In train/families/.
const ModelFamily& MlpFamily();
const ModelFamily& GptFamily();
const ModelFamily& LstmFamily();
const ModelFamily& BertFamily();
const ModelFamily& DlrmFamily();
const ModelFamily& LeNetFamily();
const ModelFamily& CnnFamily();
const ModelFamily& ResNetFamily();
const ModelFamily& OnnxFamily();
const DataFamily& FashionMnistFamily();
const DataFamily& TextFamily();
const DataFamily& ImageFolderFamily();
const DataFamily& CsvFamily();
const DataFamily& RecordsFamily();
const DataFamily& ClicksFamily();
const DataFamily& ClickRecordsFamily();

const std::vector<const ModelFamily*>& ModelFamilies() {
  static const std::vector<const ModelFamily*> all = {
      &MlpFamily(), &GptFamily(), &LstmFamily(), &BertFamily(), &DlrmFamily(), &LeNetFamily(), &CnnFamily(), &ResNetFamily(), &OnnxFamily(),
  };
  return all;
}

const std::vector<const DataFamily*>& DataFamilies() {
  static const std::vector<const DataFamily*> all = {
      &FashionMnistFamily(), &TextFamily(), &ImageFolderFamily(), &CsvFamily(), &RecordsFamily(), &ClicksFamily(), &ClickRecordsFamily(),
  };
  return all;
}

namespace {

template <class Family>
const Family* Find(const std::vector<const Family*>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family* family) { return family->name == name; });
  return found == all.end() ? nullptr : *found;
}

}  // namespace

const ModelFamily* FindModelFamily(std::string_view name) { return Find(ModelFamilies(), name); }
const DataFamily* FindDataFamily(std::string_view name) { return Find(DataFamilies(), name); }

}  // namespace ropewalk::mlrunner

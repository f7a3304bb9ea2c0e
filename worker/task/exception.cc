#include "worker/task/exception.h"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <typeinfo>

#include "base/escape.h"

namespace ropewalk::task {
namespace {

std::string TypeName(const std::type_info* type) {
  if (type == nullptr) return "an unknown type";
  int failed = 0;
  char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &failed);
  std::string result = failed == 0 && name != nullptr ? name : type->name();
  std::free(name);
  return result;
}

}  // namespace

std::string DescribeCurrentException() {
  if (std::current_exception() == nullptr) throw;
  std::string type = TypeName(abi::__cxa_current_exception_type());
  try {
    throw;
  } catch (const std::exception& e) {
    const char* text = e.what();
    return text == nullptr ? type : type + ": " + EscapeForLog(text);
  } catch (const std::string& text) {
    return "std::string: " + EscapeForLog(text);
  } catch (const char* text) {
    return text == nullptr ? type : "text: " + EscapeForLog(text);  // `throw nullptr` comes here too
  } catch (...) {
    return type;
  }
}

}  // namespace ropewalk::task

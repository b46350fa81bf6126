// Which version of Switchyard a program is.
#pragma once

namespace switchyard {

// "0.1.0 (abcdef12)": the number in CMakeLists.txt, and the commit that was built (deploy/cmake/SyVersion.cmake).
const char* Version();

}  // namespace switchyard

# Writes the page's files into a C++ source.  usage: cmake -DOUT=page_files.cc -DDIR=server/http/page -P embed.cmake
# The page's one script is the files *.js, in this order.
set(script)
foreach(name base chat heat_map live)
  file(READ "${DIR}/${name}.js" text)
  string(APPEND script "${text}")
endforeach()
file(READ "${DIR}/index.html" html)
file(READ "${DIR}/page.css" css)
file(READ "${DIR}/icon.svg" icon)

set(source "#include \"server/http/page/page_files.h\"\n\nnamespace switchyard::server {\nnamespace {\n\nconstexpr PageFile kPageFiles[] = {\n")
string(APPEND source "{\"/\", \"text/html; charset=utf-8\", R\"sypage(${html})sypage\"},\n")
string(APPEND source "{\"/page/page.css\", \"text/css; charset=utf-8\", R\"sypage(${css})sypage\"},\n")
string(APPEND source "{\"/page/page.js\", \"text/javascript; charset=utf-8\", R\"sypage(${script})sypage\"},\n")
string(APPEND source "{\"/page/icon.svg\", \"image/svg+xml\", R\"sypage(${icon})sypage\"},\n")
string(APPEND source "};\n\n}  // namespace\n\nabsl::Span<const PageFile> PageFiles() { return kPageFiles; }\n\n}  // namespace switchyard::server\n")
file(WRITE "${OUT}" "${source}")

# What a machine without a compiler runs.  Of a build folder in which the programs are built:
#
#   cmake --install BUILD --component runtime --strip --prefix DIR
#   cpack -G DEB --config BUILD/CPackConfig.cmake -B DIR     a package with the programs' dependencies, stripped; also with the
#                                                            component debian: services for systemd, their user and settings
#
# Neither builds anything (but completions, which the programs print).  A worker that computes on a GPU needs cuBLASLt and NCCL: in the loader's folders, /usr/local/cuda/lib64 or LD_LIBRARY_PATH.
include(GNUInstallDirs)
set(sy_share "${CMAKE_INSTALL_DATADIR}/switchyard")
set(sy_programs switchyard switchyard-quantize switchyard-server switchyard-worker)
install(TARGETS ${sy_programs} RUNTIME COMPONENT runtime)
install(FILES
          deploy/demo-model/README.md
          deploy/demo-model/config.json
          deploy/demo-model/generation_config.json
          deploy/demo-model/model.safetensors
          deploy/demo-model/tokenizer.json
          deploy/demo-model/tokenizer_config.json
        DESTINATION "${sy_share}/demo-model" COMPONENT runtime)
install(DIRECTORY proto/google proto/grpc proto/switchyard DESTINATION "${sy_share}/proto" COMPONENT runtime
        FILES_MATCHING PATTERN "*.proto")
install(FILES deploy/prometheus/alerts.yaml deploy/prometheus/prometheus.yaml DESTINATION "${sy_share}/prometheus" COMPONENT runtime)
install(FILES deploy/grafana/overview.json deploy/grafana/experts.json deploy/grafana/training.json DESTINATION "${sy_share}/grafana" COMPONENT runtime)
install(DIRECTORY deploy/grafana/provisioning/ DESTINATION "${sy_share}/grafana-provisioning" COMPONENT runtime)
# As the programs print them.
set(sy_completions "${CMAKE_BINARY_DIR}/completions")
install(CODE "set(SY_BIN \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\")\nset(out \"${sy_completions}\")\nset(programs \"${sy_programs}\")" COMPONENT runtime)
install(CODE [[
  file(MAKE_DIRECTORY "${out}")
  foreach(shell bash zsh)
    foreach(program ${programs})
      set(name "${program}")
      if(shell STREQUAL "zsh")
        set(name "_${program}")
      endif()
      set(ask "--completion=${shell}")
      if(program STREQUAL "switchyard")
        set(ask completion ${shell})
      endif()
      execute_process(COMMAND "${SY_BIN}/${program}" ${ask} OUTPUT_FILE "${out}/${name}" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
  endforeach()
]] COMPONENT runtime)
list(TRANSFORM sy_programs PREPEND "${sy_completions}/" OUTPUT_VARIABLE sy_bash_completions)
list(TRANSFORM sy_programs PREPEND "${sy_completions}/_" OUTPUT_VARIABLE sy_zsh_completions)
install(FILES ${sy_bash_completions} DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT runtime)
install(FILES ${sy_zsh_completions} DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" COMPONENT runtime)
install(FILES LICENSE NOTICE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)
# Only for the package, whose prefix is /usr: the services have its paths, and the settings are beside it, in /etc.
install(FILES deploy/systemd/switchyard.service deploy/systemd/switchyard-worker.service DESTINATION lib/systemd/system COMPONENT debian)
install(FILES deploy/debian/server.yaml DESTINATION ../etc/switchyard COMPONENT debian)

set(CPACK_PACKAGE_NAME switchyard)
set(CPACK_PACKAGE_VENDOR "Switchyard developers")
set(CPACK_PACKAGE_CONTACT "Switchyard developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serves and trains Mixture-of-Experts language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "A HuggingFace checkpoint directory goes in, streamed tokens come out over gRPC.
Experts are sharded over worker processes, on one machine or several, that
exchange tokens by all-to-all; the same workers train.
This package has the server, its worker, the command-line client, the API's
.proto files, alert rules, boards for Grafana, a small model to try it with, and services for
systemd (switchyard.service), which are not started by the installation.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_DEPENDS passwd)  # useradd
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(sy_debian_control conffiles postinst prerm postrm)
list(TRANSFORM sy_debian_control PREPEND "${CMAKE_SOURCE_DIR}/deploy/debian/")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${sy_debian_control})
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};switchyard;runtime;/;${CMAKE_BINARY_DIR};switchyard;debian;/")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_STRIP_FILES ON)
if(SY_CUDA_FOUND)
  set_target_properties(switchyard-worker PROPERTIES INSTALL_RPATH /usr/local/cuda/lib64)
  # The names of NVIDIA's packages.
  string(REPLACE "." "-" version "${SY_CUDA_VERSION}")
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcublas-${version}, libnccl2")
endif()
include(CPack)

# SPDX-License-Identifier: Apache-2.0
# libaf_collectives.so and the static archive that its unit tests use. No torch, no libmpi: each
# backend's own module.mk adds its sources to COLLECTIVES_SOURCES.
COLLECTIVES_SOURCES := $(filter-out collectives/without_cuda.cc,$(wildcard collectives/*.cc)) \
  $(wildcard collectives/local/*.cc collectives/store/*.cc collectives/world/*.cc)
include $(wildcard collectives/*/module.mk)

$(BUILD)/obj/collectives/%.o: CXXFLAGS += -Wno-missing-field-initializers
# Loops over memory, and the same bits whether or not a machine could fuse a multiply and an add.
$(BUILD)/obj/collectives/kernels.o: CXXFLAGS += -O3 -ffp-contract=off

$(eval $(call archive,collectives,$(COLLECTIVES_SOURCES)))
$(BUILD)/lib/libaf_collectives.so: $(patsubst %.cc,$(BUILD)/obj/%.o,$(COLLECTIVES_SOURCES)) collectives/exports.map
	@mkdir -p $(@D); echo "  LINK  $@"
	@$(CXX) $(CXXFLAGS) $(LDFLAGS) -shared -Wl,--version-script=collectives/exports.map \
	  -Wl,-soname,$(@F) -o $@ $(filter %.o,$^) -lpthread -ldl
ALL += $(BUILD)/lib/libaf_collectives.so

$(eval $(call unit_test,collectives,$(BUILD)/obj/libcollectives.a,-lpthread -ldl))
# The test of the C API opens the library itself.
$(BUILD)/tests/unit/collectives: | $(BUILD)/lib/libaf_collectives.so

$(eval $(call unit_test,world,$(BUILD)/obj/tests/unit/collectives/world.o $(BUILD)/obj/libcollectives.a,-lpthread -ldl))
$(BUILD)/tests/unit/world: | $(BUILD)/lib/libaf_collectives.so

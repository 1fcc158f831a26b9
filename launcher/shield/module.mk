# SPDX-License-Identifier: Apache-2.0
# libaf_shield.so: preloaded into ranks and their children; depends on libc alone.
$(BUILD)/lib/libaf_shield.so: $(BUILD)/obj/launcher/shield/shield.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^
ALL += $(BUILD)/lib/libaf_shield.so

# Begins attach.sh and remove.sh, which run on the host. DIRECTORY, GROUP and TAG are in the environment.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C LVM_SUPPRESS_FD_WARNINGS=1
# As the kernel names the file, without symbolic links
directory=$(cd "$DIRECTORY" 2>/dev/null && pwd -P || echo "$DIRECTORY")
file=$directory/$GROUP.img
# What LVM selects: the group is ours by its tag, and not by its name alone
ours="vg_name=$GROUP && vg_tags=$TAG"

fail() {
  echo "$*" >&2
  exit 1
}

# Prints the words that it reads, in one line.
join_words() {
  words=
  while read -r word; do words="$words${words:+ }$word"; done
  echo "$words"
}

# find_loop_device FILE: prints the loop device of a file as the kernel names it.
find_loop_device() {
  for backing in /sys/block/loop*/loop/backing_file; do
    if [ -r "$backing" ] && read -r path <"$backing" && [ "$path" = "$1" ]; then
      name=${backing#/sys/block/}
      echo "/dev/${name%%/*}"
      return
    fi
  done
}

# Prints the names of the LVs in the group.
list_volumes() {
  lvm lvs --noheadings -o lv_name -S "$ours" | join_words
}

# check_seen DEVICE: fails unless blkid and LVM agree that the device is blank, or a physical volume of our group or of
# none. What a filter or the devices file hides from LVM looks as if it had no LVs.
check_seen() {
  status=0
  content=$(blkid -p -s TYPE -o value "$1") || status=$?
  case $status:$content in
  2:) return ;;
  0:LVM2_member) ;;
  *)
    fail "$1, the loop device of $file, contains ${content:-data} that was not created by kubectl topolvm trial;" \
      "nothing was removed. See blkid -p $1"
    ;;
  esac
  lvm pvs "$1" >/dev/null 2>&1 || fail "$1, the loop device of $file, is a physical volume that LVM does not see;" \
    "nothing was removed. Add it to the devices file (lvmdevices --adddev $1), and allow it in filter and" \
    "global_filter of /etc/lvm/lvm.conf"
  [ -n "$(lvm pvs --noheadings -o pv_name -S "vg_name=\"\" || ($ours)" "$1" | join_words)" ] ||
    fail "$1, the loop device of $file, is in the volume group $(lvm pvs --noheadings -o vg_name "$1" | join_words)," \
      "which was not created by kubectl topolvm trial; nothing was removed"
}

# release DEVICE: removes the group if it has no LVs, the physical volume, and the loop device.
release() {
  check_seen "$1"
  lvm vgremove -qq -S "$ours && lv_count=0" </dev/null
  if lvm pvs "$1" >/dev/null 2>&1; then
    lvm pvremove -qq "$1" </dev/null || fail "LVM cannot remove the physical volume $1 of the volume group $GROUP"
  fi
  if [ -e /etc/lvm/devices/system.devices ]; then
    lvm lvmdevices -qq --deldev "$1" >/dev/null 2>&1 || :
  fi
  losetup -d "$1"
  # Somebody may have it open for a moment, and the kernel then takes it away after that
  for _ in 1 2 3 4 5; do
    [ -e "/sys/block/${1#/dev/}/loop/backing_file" ] || return 0
    sleep 1
  done
  fail "$1 is in use by another program (lsof $1) and cannot be detached from $file"
}

for tool in blkid lvm losetup truncate stat; do
  command -v "$tool" >/dev/null || fail "the program $tool is missing on the node; install the packages" \
    "lvm2, util-linux and coreutils"
done
# What LVM cannot list must not look like nothing
lvm vgs >/dev/null || fail "LVM does not work; run vgs on the node"

# Makes the file, the loop device and the volume group, or finds again what there is of them: after a reboot, after a
# start that was interrupted, after a change of SIZE. Nothing is made smaller, and nothing removed that holds an LV.

# check_room BYTES: fails if the file cannot get as large as SIZE. It has these bytes already.
check_room() {
  # Free blocks, all blocks, bytes of a block
  set -- "$1" $(stat -f -c '%a %b %S' "$directory")
  # kubelet evicts pods when a tenth is left
  room=$(($1 + $2 * $4 - $3 * $4 / 10))
  [ "$room" -ge "$SIZE" ] || fail "$file may have $((room > 0 ? room >> 20 : 0)) MiB: so much is free on its" \
    "filesystem, less a tenth of it, below which kubelet evicts pods; ask for less with --size, or name another" \
    "filesystem with --directory"
}

# Names what is left of a file that somebody has deleted, or releases it if there is no LV in it.
repair_deleted() {
  volumes=$(list_volumes)
  [ -z "$volumes" ] || fail "somebody has deleted $file, and its blocks go when $1 goes, at the latest with the next" \
    "reboot. These volumes are in it: $volumes. Save their data, delete their claims, and run kubectl topolvm trial" \
    "--remove"
  echo "releasing $1, whose file somebody has deleted"
  release "$1"
}

attach() {
  group_device=$(lvm pvs --noheadings -o pv_name -S "vg_name=$GROUP" | join_words)
  [ -z "$group_device" ] || fail "there is a volume group $GROUP on $group_device, and not in $file; rename it with" \
    "vgrename $GROUP NAME, or remove it"
  if [ ! -e "$file" ]; then
    check_room 0
    echo "making $file of $((SIZE >> 20)) MiB, which takes as much room as is written to it"
    # Mode 0600: it has what the volumes have
    (umask 077 && truncate -s "$SIZE" "$file")
  fi
  losetup -f "$file" || fail "there is no loop device for $file; load the kernel module loop (modprobe loop)"
}

# Makes the physical volume and the volume group, where they are not there yet.
make_group() {
  group=
  if lvm pvs "$device" >/dev/null 2>&1; then
    group=$(lvm pvs --noheadings -o vg_name "$device" | join_words)
  else
    lvm pvcreate -qq "$device" </dev/null || fail "LVM does not take $device, the loop device of $file;" \
      "see filter and global_filter in /etc/lvm/lvm.conf, or remove the file if it is not of kubectl topolvm trial"
  fi
  case $group in
  "")
    echo "making the volume group $GROUP on $device"
    lvm vgcreate -qq --addtag "$TAG" "$GROUP" "$device" </dev/null
    ;;
  "$GROUP") ;;
  *)
    fail "$file has the volume group $group and not $GROUP; rename it with vgrename $group $GROUP, or remove the" \
      "file"
    ;;
  esac
}

# Makes the file, the device and the physical volume as large as SIZE, if they are smaller.
grow() {
  [ "$(stat -c %s "$file")" -lt "$SIZE" ] || return 0
  check_room $(($(stat -c %b "$file") * 512))
  echo "growing $file to $((SIZE >> 20)) MiB"
  truncate -s "$SIZE" "$file"
  losetup -c "$device"
  lvm pvresize -qq "$device" </dev/null
}

if [ ! -d "$directory" ]; then
  (umask 077 && mkdir -p "$directory")
  directory=$(cd "$directory" && pwd -P)
  file=$directory/$GROUP.img
fi
deleted=$(find_loop_device "$file (deleted)")
[ -z "$deleted" ] || repair_deleted "$deleted"
device=$(find_loop_device "$file")
if [ -z "$device" ]; then
  attach
  device=$(find_loop_device "$file")
  [ -n "$device" ] || fail "the kernel does not show which loop device has $file; it may be a symbolic link"
fi
make_group
grow
lvm vgchange -qq -ay "$GROUP" </dev/null
echo "the volume group $GROUP is on $device, the loop device of $file"

// Objects, strings and typed arrays that live for some rounds and die, and a checksum.
'use strict';
const rounds = Number(process.argv[2]), perRound = Number(process.argv[3]);
const table = new Map(), kept = [];
let checksum = 0;
for (let round = 0; round < rounds; round++) {
  const items = [];
  for (let i = 0; i < perRound; i++) {
    const key = round * perRound + i;
    const item = { key, name: `item ${key} of many`, list: [key, key + 1, key + 2], at: round };
    items.push(item);
    table.set(key % (2 * perRound), item);
  }
  kept.push({ items, bytes: new Uint8Array(1 << 20).fill(round & 255) });
  if (kept.length > 4) {
    const old = kept.shift();
    for (const item of old.items) checksum = (checksum * 31 + item.key + item.name.length) % 1e9;
    for (let i = 0; i < old.bytes.length; i += 511) checksum = (checksum + old.bytes[i]) % 1e9;
  }
}
for (const item of table.values()) checksum = (checksum * 31 + item.list[2]) % 1e9;
console.log(`checksum ${checksum} items ${table.size}`);

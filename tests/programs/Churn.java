import java.util.ArrayList;
import java.util.HashMap;

/** Objects that live for some rounds and die, and a checksum: what a collector has to move. */
class Churn {
    static final class Item {
        final long key;
        final byte[] body;
        Item next;

        Item(long key, Item next) {
            this.key = key;
            this.next = next;
            this.body = ("item " + key + " of many that look alike").getBytes();
        }
    }

    public static void main(String[] args) {
        int rounds = Integer.parseInt(args[0]), perRound = Integer.parseInt(args[1]);
        HashMap<Long, Item> table = new HashMap<>();
        ArrayList<Item> chains = new ArrayList<>();
        long checksum = 0;
        for (int round = 0; round < rounds; round++) {
            Item chain = null;
            for (int i = 0; i < perRound; i++) {
                long key = (long) round * perRound + i;
                chain = new Item(key, chain);
                table.put(key % (3L * perRound), chain);
            }
            chains.add(chain);
            if (chains.size() > 4) {
                for (Item item = chains.remove(0); item != null; item = item.next) {
                    checksum = checksum * 31 + item.key + item.body.length;
                }
            }
        }
        for (long key = 0; key < 3L * perRound; key++) {
            Item item = table.get(key);
            checksum = checksum * 31 + (item == null ? 0 : item.key + item.body[0]);
        }
        System.out.println("checksum " + checksum + " items " + table.size());
    }
}

import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.TransactionLog;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;
import org.apache.kafka.server.common.TransactionVersion;

/** Prints records of __transaction_state as Kafka's own coordinator writes them: name, key and value in hexadecimal. */
public class TransactionRecords {
    private static void print(String name, byte[] value) {
        HexFormat hex = HexFormat.of();
        System.out.println(name + " " + hex.formatHex(TransactionLog.keyToBytes("where ü"))
            + " " + (value == null ? "-" : hex.formatHex(value)));
    }

    private static void print(
        String name, long previousId, long nextId, TransactionState state, int partitions, long startMs,
        TransactionVersion client
    ) {
        HashSet<TopicPartition> topicPartitions = new HashSet<>();
        for (int partition = 0; partition < partitions; partition++) {
            topicPartitions.add(new TopicPartition("t", partition));
        }
        print(name, TransactionLog.valueToBytes(
            new TxnTransitMetadata(
                5, previousId, nextId, (short) 7, (short) 6, 60000, state, topicPartitions, startMs, 2000, client),
            TransactionVersion.TV_2));
    }

    public static void main(String[] args) {
        print("empty", -1, -1, TransactionState.EMPTY, 0, -1, TransactionVersion.TV_0);
        print("ongoing", -1, -1, TransactionState.ONGOING, 1, 1000, TransactionVersion.TV_2);
        print("prepared-with-next-id", 3, 9, TransactionState.PREPARE_COMMIT, 1, 1000, TransactionVersion.TV_2);
        print("aborting", 3, -1, TransactionState.PREPARE_ABORT, 1, 1000, TransactionVersion.TV_0);
        print("complete", 3, -1, TransactionState.COMPLETE_COMMIT, 0, 1000, TransactionVersion.TV_2);
        print("tombstone", null);
        TransactionLogValue old = new TransactionLogValue()
            .setProducerId(5).setProducerEpoch((short) 7).setTransactionTimeoutMs(60000)
            .setTransactionStatus(TransactionState.ONGOING.id())
            .setTransactionPartitions(List.of(
                new TransactionLogValue.PartitionsSchema().setTopic("t").setPartitionIds(List.of(0, 1))))
            .setTransactionStartTimestampMs(1000).setTransactionLastUpdateTimestampMs(2000);
        print("of-version-0", MessageUtil.toVersionPrefixedBytes((short) 0, old));
        // Kafka 4.3 has the fields of KIP-939, and nothing yet that writes them.
        print("kept", MessageUtil.toVersionPrefixedBytes((short) 1, old
            .setNextProducerId(5).setNextProducerEpoch((short) 9).setClientTransactionVersion((short) 2)));
    }
}

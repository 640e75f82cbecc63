def test_table_has_gains_and_why_a_method_did_not_run():
    from overlaptop.workloads.gemm_overlap import table

    plain, ring = [], []
    for late_s in (0.0, 1.0, 0.0):  # one outlier
        plain.append([0.2 + late_s, 0.4, 0.4, 0.2])
        ring.append([0.5, 0.7 + late_s])
    header, *rows = table({"torch": plain, "ring": ring, "other": "needs 2 GPUs"}, tflop=1.0).splitlines()
    assert header.split() == ["ms", "TFLOP/s", "hidden", "speed-up"]
    figures = [row.split()[-4:] for row in rows]
    assert figures[:2] == [["600.000", "1.67", "–", "–"]] * 2
    assert figures[2] == ["500.000", "2.00", "50%", "1.20×"]
    assert figures[3] == ["700.000", "1.43", "0%", "0.86×"]
    assert rows[4].split() == ["other", "not", "run:", "needs", "2", "GPUs"]

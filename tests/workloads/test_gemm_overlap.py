def test_the_table_has_what_each_way_gains_and_says_of_others_why_they_did_not_run():
    from overlaptop.workloads.gemm_overlap import Times, table

    plain, ring = Times(), Times()
    for late_s in (0.0, 1.0, 0.0):  # one outlier
        plain.add([0.2 + late_s, 0.4, 0.4, 0.2])
        ring.add([0.5, 0.7 + late_s])
    header, *rows = table({"torch": plain, "ring": ring, "flux": "needs 2 GPUs"}, tflop=1.0).splitlines()
    assert header.split() == ["ms", "TFLOP/s", "hidden", "speed-up"]
    figures = [row.split()[-4:] for row in rows]
    assert figures[:2] == [["600.000", "1.67", "–", "–"]] * 2
    assert figures[2] == ["500.000", "2.00", "50%", "1.20×"]
    assert figures[3] == ["700.000", "1.43", "0%", "0.86×"]
    assert rows[4].split() == ["flux", "not", "run:", "needs", "2", "GPUs"]
